"""What only a GPU can run, without Ray and in minutes: `pytest -m gpu tests/gpu`."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from verl.config import FSDPConfig, ModelConfig, OptimConfig
from verl.engine.base import MicroBatching
from verl.engine.fsdp import FSDPEngine
from verl.models.policy import PolicyModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

Run = Callable[..., list[dict[str, Any]]]


def test_cuda_is_chosen_and_a_run_trains_in_bf16(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    record = run_metrics(tiny_run("trainer.test_freq=0"))[-1]
    assert record["actor/grad_norm"] > 0 and record["critic/grad_norm"] > 0
    assert record["perf/peak_cuda_gib"] > 0


def test_fp32_on_cuda_is_fp32_on_the_cpu(tiny_run: Callable[..., list[str]], run_metrics: Run) -> None:
    fp32 = [
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=fp32",
        "critic.fsdp.mixed_precision.param_dtype=fp32",
    ]
    gpu = run_metrics(tiny_run(*fp32), "gpu")[0]
    cpu = run_metrics(tiny_run(*fp32, "trainer.device=cpu"), "cpu")[0]
    for name in ("reward/score_mean", "actor/grad_norm", "critic/grad_norm", "kl/ref_k1"):
        assert gpu[name] == pytest.approx(cpu[name], rel=1e-2, abs=1e-4), name


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_beside_the_trainer(
    tiny_run: Callable[..., list[str]], run_metrics: Run, tiny_model_dir_factory: Callable[..., Path]
) -> None:
    # vLLM's kernels want larger heads than the other tests' models have.
    model = tiny_model_dir_factory("llama", hidden_size=256, num_attention_heads=4, num_key_value_heads=4)
    overrides = tiny_run(
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.2",
        "actor_rollout_ref.rollout.enforce_eager=true",
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
    )
    for record in run_metrics(overrides):
        assert record["rollout/logprob_abs_diff_mean"] < 0.1  # both compute in bf16


def test_a_rest_on_the_cpu_changes_nothing(tiny_model_dir: Path) -> None:
    batch = ragged_batch()

    def steps(rest: bool) -> list[dict[str, float]]:
        policy = PolicyModel.load(ModelConfig(path=str(tiny_model_dir)), torch.float32)
        engine = FSDPEngine(policy, FSDPConfig(), OptimConfig(lr=1e-2), "cuda", total_steps=8)
        results = [update(engine, batch) for _ in range(2)]
        if rest:
            engine.move("cpu")
            with pytest.raises(RuntimeError, match="the weights are on 'cpu'"):
                engine.forward(batch, MicroBatching())
            engine.move("cuda")
        return results + [update(engine, batch) for _ in range(2)]

    for rested, went_on in zip(steps(rest=True), steps(rest=False), strict=True):
        assert rested == pytest.approx(went_on, rel=1e-5)


def ragged_batch() -> Any:
    from tensordict import TensorDict

    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    ids = torch.arange(12, device="cuda").view(2, 6) + 6
    attention = torch.cat([torch.ones(2, 3, dtype=torch.long), mask], 1).cuda()
    columns = {"input_ids": ids, "attention_mask": attention, "response_mask": mask.cuda()}
    return TensorDict(columns, batch_size=[2])


def update(engine: FSDPEngine, batch: Any) -> dict[str, float]:
    engine.forward_backward(batch, lambda outputs, rows: (-outputs["log_probs"].sum(), {}), 4.0, MicroBatching())
    return engine.optim_step()
