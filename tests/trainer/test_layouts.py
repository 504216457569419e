"""Law 6: a run's figures do not depend on where it ran."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from verl.config.loader import load_config
from verl.models.loading import load_model_tokenizer
from verl.protocol import DataProto
from verl.rewards import RewardResult
from verl.trainer import RayPPOTrainer
from verl.trainer.checks import checked
from verl.trainer.launch import running
from verl.trainer.plan import check_devices
from verl.trainer.roles import Role, default_roles
from verl.worker import Dispatch, register
from verl.worker.critic import CriticWorker
from verl.worker.reference import ReferencePolicyWorker
from verl.workers.ray import ResourcePoolManager, ensure_ray

CLOCK = ("timing/", "perf/")
Records = list[dict[str, Any]]
Run = Callable[..., Records]


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    """One Ray for the runs of this file: each finds it running and leaves it so."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import test files
    with ensure_ray(num_cpus=4):
        yield


def read_metrics(folder: Path) -> Records:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def figures(record: dict[str, Any]) -> set[str]:
    """The names of what is computed; those of the clock and of memory follow the layout."""
    return {name for name in record if not name.startswith(CLOCK)}


def assert_same(one: Records, two: Records) -> None:
    assert len(one) == len(two)
    for left, right in zip(one, two, strict=True):
        assert figures(left) == figures(right)
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


def test_actor_and_rollout_apart(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    # Weights must reach the rollout at the start, after every update, and when a run resumes.
    overrides = tiny_run("trainer.total_training_steps=3", "actor_rollout_ref.rollout.check_weight_sync=true")
    local = run_metrics(overrides, "local")
    device_map = "{actor: {type: fsdp, devices: [cpu:0, cpu:1]}, rollout: {type: hf, devices: [cpu:2]}}"
    apart = [*overrides, "trainer.worker_group=ray", f"trainer.device_map={device_map}", "trainer.save_freq=2"]
    run_metrics([*apart, "trainer.total_training_steps=2"], "apart")
    resumed = run_metrics(apart, "apart")
    assert_same(local, resumed)
    assert all(record["rollout/logprob_abs_diff_max"] < 1e-4 for record in resumed)
    assert all(record["perf/sync_bytes"] > 0 for record in resumed)


def test_critic_and_reference_apart_from_actor_and_each_other(
    tiny_run: Callable[..., list[str]], run_metrics: Run
) -> None:
    device_map = "{ref: {type: cpu, devices: [cpu:1]}, critic: {devices: [cpu:1], own_process: true}}"
    mapped = ["trainer.worker_group=ray", f"trainer.device_map={device_map}"]
    assert_same(run_metrics(tiny_run(), "local"), run_metrics(tiny_run(*mapped), "mapped"))


def meet(folder: Path, name: str) -> None:
    """Return when the reference, the critic and the reward have all begun; TimeoutError when they never do."""
    (folder / name).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 3:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} runs alone: {sorted(path.name for path in folder.iterdir())} have begun")
        time.sleep(0.01)


class MeetingReference(ReferencePolicyWorker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        meet(Path(self.config.trainer.default_local_dir).with_name("meeting"), "ref")
        return super().compute_ref_log_prob(batch)


class MeetingCritic(CriticWorker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, batch: DataProto) -> DataProto:
        meet(Path(self.config.trainer.default_local_dir).with_name("meeting"), "critic")
        return super().compute_values(batch)


def test_reference_values_and_reward_overlap_on_pools_of_their_own(
    tiny_run: Callable[..., list[str]], tmp_path: Path
) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    device_map = "{ref: {type: cpu, devices: [cpu:1]}, critic: {devices: [cpu:2]}}"
    config = checked(
        load_config(
            tiny_run("trainer.worker_group=ray", f"trainer.device_map={device_map}", "trainer.total_training_steps=1")
        )
    )

    def meeting_reward(batch: DataProto) -> RewardResult:
        meet(meeting, "reward")
        return RewardResult(batch.batch["response_mask"].float(), {})

    roles = default_roles(config) | {"ref": MeetingReference, "critic": MeetingCritic}
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
    trainer = RayPPOTrainer(config, tokenizer, roles, reward_fn=meeting_reward)
    with running(trainer):
        trainer.fit()
    assert {path.name for path in meeting.iterdir()} == {"ref", "critic", "reward"}


def test_devices_that_do_not_exist(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    overrides = tiny_run("trainer.worker_group=ray", "trainer.device_map={critic: {devices: ['cuda:7']}}")
    with pytest.raises(ValueError, match=r"gives critic cuda:7, but node .* has 0 GPUs"):
        run_metrics(overrides)
    overrides = tiny_run("trainer.worker_group=ray", "trainer.device_map={critic: {gpus: 2}}")
    with pytest.raises(ValueError, match=r"gives critic 2 GPUs of one node, but node .* has 0: ask for fewer"):
        run_metrics(overrides)
    with pytest.raises(ValueError, match=r"trainer.device=cuda, but node .* has no GPU: use trainer.device=cpu"):
        run_metrics(tiny_run("trainer.worker_group=ray", "trainer.device=cuda"))
    overrides = tiny_run("trainer.worker_group=ray", "trainer.device_map={critic: {type: cpu, node: 3}}")
    with pytest.raises(ValueError, match=r"node 3: there is no such node; the cluster has 0: "):
        run_metrics(overrides)


def test_devices_that_do_not_exist_are_told_by_the_names_of_the_map() -> None:
    device_map = "{actor: {devices: ['cuda:7']}, reward_model: {gpus: 2}}"
    config = load_config([f"trainer.device_map={device_map}"])
    for role, message in {
        Role.ActorRollout: "trainer.device_map gives actor cuda:7, but",
        Role.Critic: "trainer.device_map gives actor cuda:7, but",  # where the critic lives
        Role.RewardModel: "trainer.device_map gives reward_model 2 GPUs of one node",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_devices(config, [role])


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


def test_one_step_across_two_nodes(tiny_run: Callable[..., list[str]], tmp_path: Path, run_metrics: Run) -> None:
    # A cluster of its own, in a process of its own: Ray knows one cluster per driver.

    overrides = tiny_run("trainer.total_training_steps=1")
    local = run_metrics(overrides, "local")
    arguments = [
        *overrides,
        "trainer.worker_group=ray",
        "trainer.device_map={actor: {devices: [cpu:0], node: [0, 1]}, ref: {type: cpu, node: 1}}",
        f"trainer.default_local_dir={tmp_path / 'nodes'}",
    ]
    script = Path(__file__).with_name("two_nodes.py")
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "actor_rollout on 2 nodes, ref on 1" in done.stdout
    assert_same(local, read_metrics(tmp_path / "nodes"))


def test_a_custom_worker_from_a_trainer_subclass(tiny_run: Callable[..., list[str]]) -> None:

    example = load_example("custom_worker")
    config = checked(load_config(tiny_run("trainer.worker_group=ray", "trainer.n_gpus_per_node=2")))
    roles = {**default_roles(config), "novelty": example.NoveltyWorker}
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
    trainer = example.NoveltyTrainer(config, tokenizer, roles)
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
