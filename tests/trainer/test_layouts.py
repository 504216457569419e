"""Law 6: a run's figures do not depend on where it ran."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CLOCK = ("timing/", "perf/")
Records = list[dict[str, Any]]
Run = Callable[..., Records]


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    """One Ray for the runs of this file: each finds it running and leaves it so."""
    from verl.workers.ray import ensure_ray

    with ensure_ray(num_cpus=2):
        yield


def read_metrics(folder: Path) -> Records:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same(one: Records, two: Records) -> None:
    assert len(one) == len(two)
    for left, right in zip(one, two, strict=True):
        assert left.keys() - {"timing/validate"} == right.keys() - {"timing/validate"}
        for name, value in left.items():
            if isinstance(value, float) and not name.startswith(CLOCK):
                assert right[name] == pytest.approx(value, abs=1e-4, rel=1e-4), (left["step"], name)


@pytest.mark.parametrize("extra", [(), ("data.train_batch_size=3", "actor_rollout_ref.actor.ppo_mini_batch_size=1")])
def test_local_and_ray_with_1_and_2_processes(
    tiny_run: Callable[..., list[str]], run_metrics: Run, extra: tuple[str, ...]
) -> None:
    # With one prompt of 3 samples a mini-batch, two processes need a pad row.
    overrides = tiny_run("actor_rollout_ref.rollout.n=3", "trainer.test_freq=0", *extra)
    local = run_metrics(overrides, "local")
    for processes in (1, 2):
        layout = [*overrides, "trainer.worker_group=ray", f"trainer.n_gpus_per_node={processes}"]
        assert_same(local, run_metrics(layout, f"ray{processes}"))


def test_roles_on_two_pools(tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path) -> None:
    from verl.config.loader import load_config
    from verl.models.loading import load_model_tokenizer
    from verl.trainer import RayPPOTrainer
    from verl.trainer.checks import checked
    from verl.trainer.roles import Role, default_roles
    from verl.workers.ray import ResourcePoolManager

    local = run_metrics(tiny_run(), "local")
    config = checked(load_config(tiny_run("trainer.worker_group=ray", f"trainer.default_local_dir={tmp_path / 'two'}")))
    pools = ResourcePoolManager(
        resource_pool_spec={"policy": [1], "others": [1]},
        mapping={Role.ActorRollout: "policy", Role.Critic: "others", Role.RefPolicy: "others"},
        use_gpu=False,
    )
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
    trainer = RayPPOTrainer(config, tokenizer, default_roles(config), pools)
    try:
        trainer.init_workers()
        trainer.fit()
    finally:
        trainer.shutdown()
    assert_same(local, read_metrics(tmp_path / "two"))


def test_balancing_tokens_over_processes_changes_nothing(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    overrides = tiny_run("trainer.worker_group=ray", "trainer.n_gpus_per_node=2")
    assert_same(run_metrics(overrides, "plain"), run_metrics([*overrides, "trainer.balance_batch=true"], "balanced"))


def test_g4_a_checkpoint_of_two_processes_loads_in_one(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tmp_path: Path
) -> None:
    overrides = tiny_run("trainer.worker_group=ray", "trainer.save_freq=1")
    two = [*overrides, "trainer.n_gpus_per_node=2"]
    whole = run_metrics([*two, "trainer.total_training_steps=3"], "whole")
    run_metrics([*two, "trainer.total_training_steps=2"], "resharded")
    resumed = run_metrics([*overrides, "trainer.total_training_steps=3"], "resharded")
    assert_same(whole, resumed)


def test_a_custom_worker_from_a_trainer_subclass(tiny_run: Callable[..., list[str]]) -> None:
    from verl.config.loader import load_config
    from verl.models.loading import load_model_tokenizer
    from verl.trainer.checks import checked
    from verl.trainer.launch import placement
    from verl.trainer.roles import default_roles

    example = load_example("custom_worker")
    config = checked(load_config(tiny_run("trainer.worker_group=ray", "trainer.n_gpus_per_node=2")))
    roles = {**default_roles(config), "novelty": example.NoveltyWorker}
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
    trainer = example.NoveltyTrainer(config, tokenizer, roles, **placement(config, roles))
    try:
        trainer.init_workers()
        trainer.fit()
    finally:
        trainer.shutdown()
    assert "reward/novelty_mean" in read_metrics(Path(config.trainer.default_local_dir))[0]


def load_example(name: str) -> Any:
    import importlib.util
    import sys

    from ray import cloudpickle

    folder = Path(__file__).parents[2] / "examples"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        cloudpickle.register_pickle_by_value(module)  # actors cannot import it: its classes travel whole
        return module
    finally:
        sys.path.remove(str(folder))
