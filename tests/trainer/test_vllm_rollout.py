"""A PPO run that generates with vLLM: the same policy in both engines, in every layout of processes."""

import gc
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import read_metrics
from verl.config.loader import load_config
from verl.models.loading import load_model_tokenizer
from verl.trainer import RayPPOTrainer
from verl.trainer.checks import checked
from verl.trainer.launch import running
from verl.trainer.roles import Role, default_roles
from verl.utils.metrics import Metrics
from verl.worker import Dispatch, register
from verl.worker.actor_rollout import ActorRolloutWorker

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here", allow_module_level=True)

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """An engine in this process goes with its worker, and takes along the process group that it started."""
    yield
    gc.collect()
    assert not torch.distributed.is_initialized()


@pytest.fixture(scope="session")
def model_dir(tiny_model_dir_factory: Callable[..., Path]) -> Path:
    """Attention heads of 32, the smallest that vLLM takes on a CPU, and enough for two processes."""
    return tiny_model_dir_factory("llama", hidden_size=64, num_attention_heads=2, num_key_value_heads=2)


@pytest.fixture
def vllm_run(tiny_run: Callable[..., list[str]], model_dir: Path) -> Callable[..., list[str]]:
    def overrides(*extra: str) -> list[str]:
        return tiny_run(
            f"actor_rollout_ref.model.path={model_dir}",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.check_weight_sync=true",
            "actor_rollout_ref.rollout.max_logprob_diff=1e-3",
            "actor_rollout_ref.rollout.temperature=0.7",
            "trainer.test_freq=1",
            *extra,
        )

    return overrides


def test_a_run(vllm_run: Callable[..., list[str]], run_metrics: Run, model_dir: Path) -> None:
    from safetensors.torch import load_file

    records = run_metrics(vllm_run("trainer.total_training_steps=3", "trainer.total_epochs=2"))
    assert len(records) == 3
    for record in records:
        assert record["rollout/logprob_abs_diff_max"] < 1e-3 and record["rollout/prob_corr"] > 0.999
        assert record["perf/sync_bytes"] == sum(
            weight.nbytes for weight in load_file(model_dir / "model.safetensors").values()
        )
        assert record["perf/sync_bytes_per_second"] > 0 and record["timing/sync"] > 0


def figures(record: dict[str, Any]) -> dict[str, Any]:
    """What two runs of the same job must have in common."""
    kinds = ("reward/", "response_length/", "actor/", "critic/", "val/")
    found = {name: value for name, value in record.items() if name.startswith(kinds)}
    assert len(found) > 10
    return found


def test_the_same_run_with_either_engine(vllm_run: Callable[..., list[str]], run_metrics: Run) -> None:
    runs = [run_metrics(vllm_run(f"actor_rollout_ref.rollout.name={name}"), name) for name in ("vllm", "hf")]
    for one, two in zip(*runs, strict=True):
        assert figures(one) == pytest.approx(figures(two), abs=1e-3)


class Forgetful(ActorRolloutWorker):
    """Brings the first weights to the rollout engine, and of later ones the version alone."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sync_weights(self) -> Metrics:
        if self.weights_version == 0:
            return super().sync_weights()
        self.generation.engine.version = self.weights_version
        return {}


@pytest.mark.parametrize("limit", ["null", "1e-3"])
def test_a_forgotten_sync_shows(vllm_run: Callable[..., list[str]], tmp_path: Path, limit: str) -> None:
    overrides = vllm_run("actor_rollout_ref.actor.optim.lr=1e-2", f"trainer.default_local_dir={tmp_path}")
    config = checked(load_config([*overrides, f"actor_rollout_ref.rollout.max_logprob_diff={limit}"]))
    roles = {**default_roles(config), Role.ActorRollout: Forgetful}
    tokenizer = load_model_tokenizer(config.actor_rollout_ref.model)
    trainer = RayPPOTrainer(config, tokenizer, roles)
    with running(trainer):
        if limit == "null":
            trainer.fit()
            first, second = (record["rollout/logprob_abs_diff_max"] for record in read_metrics(tmp_path))
            assert first < 1e-3 and second > 1e-2
        else:
            with pytest.raises(RuntimeError, match="the two engines do not hold the same policy"):
                trainer.fit()


TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
LAYOUTS = {
    "two replicas": ["trainer.n_gpus_per_node=2"],
    "one replica over both processes": ["trainer.n_gpus_per_node=2", TENSOR_PARALLEL],
    "one replica over two processes apart from the actor": [
        "trainer.device_map={actor: {devices: [cpu:0]}, rollout: {type: vllm, devices: [cpu:1, cpu:2]}}",
        TENSOR_PARALLEL,
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_and_generation_in_layouts_of_their_own(
    vllm_run: Callable[..., list[str]], run_metrics: Run, layout: str
) -> None:
    alone = run_metrics(vllm_run(), "alone")
    together = run_metrics(vllm_run("trainer.worker_group=ray", *LAYOUTS[layout]), "together")
    for one, two in zip(alone, together, strict=True):
        assert figures(one) == pytest.approx(figures(two), abs=1e-3)
