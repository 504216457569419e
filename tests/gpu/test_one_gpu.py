"""What only a GPU can run, without Ray and in minutes: `pytest -m gpu tests/gpu`."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from verl.config import FSDPConfig, ModelConfig, OptimConfig
from verl.config.loader import load_config
from verl.engine.base import MicroBatching
from verl.engine.fsdp import FSDPEngine
from verl.models.policy import PolicyModel
from verl.rollout.weight_channel import WeightChannel
from verl.trainer.checks import checked
from verl.utils.distributed import group_of_one
from verl.worker.actor_rollout import ActorRolloutWorker
from verl.worker.reference import ReferencePolicyWorker

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


@pytest.fixture
def vllm_run(tiny_run: Callable[..., list[str]], tiny_model_dir_factory: Callable[..., Path]) -> list[str]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    # vLLM's kernels want larger heads than the other tests' models have.
    model = tiny_model_dir_factory("llama", hidden_size=256, num_attention_heads=4, num_key_value_heads=4)
    return tiny_run(
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.2",
        "actor_rollout_ref.rollout.enforce_eager=true",
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
    )


def test_vllm_beside_the_trainer(vllm_run: list[str], run_metrics: Run) -> None:
    for record in run_metrics(vllm_run):
        assert record["rollout/logprob_abs_diff_mean"] < 0.1  # both compute in bf16


@pytest.mark.parametrize("level", [1, 2])
def test_vllm_sleeps_until_the_first_batch(vllm_run: list[str], level: int, tmp_path: Path) -> None:
    worker = ActorRolloutWorker(checked(load_config([*vllm_run, f"actor_rollout_ref.rollout.sleep_level={level}"])))
    worker.init_model()
    engine: Any = worker.generation.engine
    free, total = torch.cuda.mem_get_info()
    assert total - free < 0.1 * total  # awake, it has a fifth
    assert engine._asleep == {"weights", "kv_cache"} and engine.has_weights == (level == 1)
    worker.save_checkpoint(str(tmp_path / "actor"))
    worker.sync_weights()
    assert engine._asleep == {"kv_cache"} and engine.has_weights
    worker.load_checkpoint(str(tmp_path / "actor"))
    assert engine._asleep == {"weights", "kv_cache"}
    worker.close()


def test_a_group_of_one_takes_tensors_of_both_kinds() -> None:
    group = group_of_one("cuda")
    for device in ("cpu", "cuda"):
        total = torch.tensor([1.0, 2.0], device=device)
        dist.all_reduce(total)
        assert total.tolist() == [1.0, 2.0]
    del group


def test_weights_travel_between_two_members_on_one_gpu() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def channel(rank: int) -> WeightChannel:
        mine = dist.TCPStore("127.0.0.1", store.port, None, False)
        return WeightChannel(mine, rank, 2, "cuda", timeout_s=30)

    def take(rank: int) -> list[float]:
        _, weights = channel(rank).receive()
        return dict(weights)["w"].tolist()

    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(lambda: channel(0).send([("w", torch.arange(3.0, device="cuda"))], 1, 100))
        taken = pool.submit(take, 1)
        assert (sent.result(), taken.result()) == (12, [0.0, 1.0, 2.0])


def test_the_sends_of_a_channel_between_gpus_have_its_time_limit() -> None:
    channel = WeightChannel(dist.HashStore(), 0, 1, "cuda", timeout_s=7)
    assert channel.device == "cuda"
    assert channel._buffers.options._timeout.total_seconds() == 7


def test_an_unloaded_reference_leaves_the_gpu(tiny_run: Callable[..., list[str]]) -> None:
    worker = ReferencePolicyWorker(checked(load_config(tiny_run())))
    before = torch.cuda.memory_allocated()
    worker.init_model()
    assert torch.cuda.memory_allocated() > before
    worker.drop_engine()
    assert torch.cuda.memory_allocated() <= before
    worker.close()


def test_the_plan_of_a_run_takes_no_memory_of_a_gpu() -> None:
    code = (
        "import torch; from verl.trainer.plan import RolePlan, memory_per_process;"
        "plans = [RolePlan('actor', 'A', 1, 'cuda:0', '0', 'cuda', 'pool')];"
        "print(memory_per_process(plans)['cuda'] > 2**30, torch._C._cuda_hasPrimaryContext(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "True False\n"


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
