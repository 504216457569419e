"""A PPO run that generates with vLLM: the same policy in both engines, in every layout of processes."""

import gc
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_two_processes_train_and_generate_in_layouts_of_their_own(
    vllm_run: Callable[..., list[str]], run_metrics: Run, tensor_parallel_size: int
) -> None:
    alone = run_metrics(vllm_run(), "alone")
    together = run_metrics(
        vllm_run(
            "trainer.worker_group=ray",
            "trainer.n_gpus_per_node=2",
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={tensor_parallel_size}",
        ),
        "together",
    )
    names = [name for name in alone[0] if name.startswith(("reward/", "response_length/", "actor/", "critic/", "val/"))]
    assert len(names) > 10
    for one, two in zip(alone, together, strict=True):
        assert {name: two[name] for name in names} == pytest.approx({name: one[name] for name in names}, abs=1e-3)
