"""vLLM and the process group: several engines in one, replicas of one process in two, and one replica over two."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.conftest import build_tiny_model
from verl.rollout.base import Sampling

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here", allow_module_level=True)

PROMPTS = [[5, 9, 17], [40, 41, 42, 43, 44, 45, 46], list(range(10, 80)), [7]]
# 4 heads of 32: each of two processes has 2, and 1 of the key/value heads
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}


def generate(tensor_parallel_size: int, family: str) -> dict[str, Any]:
    """What one process makes of the prompts: all of them in a replica of two, its half in one of its own."""
    from verl.rollout.vllm_engine import vLLMRolloutEngine
    from verl.rollout.vllm_setup import VLLMSettings

    rank = dist.get_rank()
    sizes = {"n_embd": 128, "n_head": 4} if family == "gpt2" else SIZES
    model = build_tiny_model(family, **sizes)
    settings = VLLMSettings(max_model_len=128, tensor_parallel_size=tensor_parallel_size)
    engine = vLLMRolloutEngine.for_module(model, torch.float32, "cpu", seed=rank, settings=settings)
    dist.barrier()  # each process takes some of the names away
    shared_memory = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line]
    engine.update_weights(model.named_parameters(), version=1)
    chosen = range(4) if tensor_parallel_size == 2 else range(rank, 4, 2)
    prompts, seeds = [PROMPTS[i] for i in chosen], list(chosen)
    sampling = Sampling(10, temperature=0.7, top_p=0.9, ignore_eos=True)
    made = engine.generate(prompts, sampling, seeds)
    result: dict[str, Any] = {
        "shared_memory": shared_memory,
        "tokens": {i: completion.token_ids for i, completion in zip(chosen, made, strict=True)},
        "log_probs": {i: completion.log_probs for i, completion in zip(chosen, made, strict=True)},
        "unseeded": [completion.token_ids for completion in engine.generate(PROMPTS, sampling)],
        "error": max(engine.weight_errors(model.named_parameters()).values()),
    }
    other = build_tiny_model(family, seed=1, **sizes)
    matrices = [(name, weight) for name, weight in other.named_parameters() if weight.dim() == 2]
    result["other"] = min(engine.weight_errors(matrices).values())
    if tensor_parallel_size == 2:
        with pytest.raises(ValueError, match="2 processes of a replica were given different prompts"):
            engine.generate([PROMPTS[rank]], sampling, [0])
        with pytest.raises(ValueError, match="does not divide the 2 processes"):
            vLLMRolloutEngine("x", settings=VLLMSettings(tensor_parallel_size=3))
    engine.update_weights(other.named_parameters(), version=2)
    result["greedy"] = [completion.token_ids for completion in engine.generate(PROMPTS, Sampling(8, temperature=0.0))]
    engine.close()
    assert dist.is_initialized()
    return result


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_replica_of_two_processes_generates_what_two_of_one_do(
    run_distributed: Callable[..., list[Any]], family: str
) -> None:
    one, two = (run_distributed(generate, 2, size, family, timeout_s=280) for size in (1, 2))
    for result in two:  # shared memory without a name goes with its processes, however they end
        assert result["shared_memory"] and all(line.endswith("(deleted)") for line in result.pop("shared_memory"))
    assert two[0] == {**two[1], "error": two[0]["error"], "other": two[0]["other"]}
    assert two[0]["tokens"] == {**one[0]["tokens"], **one[1]["tokens"]}
    alone = {**one[0]["log_probs"], **one[1]["log_probs"]}
    for i, log_probs in two[0]["log_probs"].items():
        assert log_probs == pytest.approx(alone[i], abs=1e-4)
    assert one[0]["unseeded"] != one[1]["unseeded"] and one[0]["unseeded"] == two[0]["unseeded"]
    assert one[0]["greedy"] == one[1]["greedy"] == two[0]["greedy"]
    for result in one + two:
        assert result["error"] < 1e-5 and result["other"] > 1e-2


def engines_of_a_process_alone() -> None:
    """Runs in a process of its own, where nobody else holds the group."""
    from verl.rollout.vllm_engine import vLLMRolloutEngine
    from verl.rollout.vllm_setup import VLLMSettings
    from verl.worker import Worker

    model = build_tiny_model(**SIZES)

    def engine() -> vLLMRolloutEngine:
        made = vLLMRolloutEngine.for_module(model, torch.float32, "cpu", 0, VLLMSettings(max_model_len=128))
        made.update_weights(model.named_parameters(), version=1)
        return made

    def tokens(engine: vLLMRolloutEngine) -> list[int]:
        return engine.generate([PROMPTS[0]], Sampling(4, temperature=0.0))[0].token_ids

    first, second = engine(), engine()
    expected = tokens(first)
    first.close()
    assert dist.is_initialized() and tokens(second) == expected
    second.close()
    assert not dist.is_initialized()
    # Now a worker makes the group, and vLLM makes its own out of it anew.
    worker = Worker()
    worker.init_distributed("cpu", timeout_s=10)
    third = engine()
    worker.close()
    assert dist.is_initialized() and tokens(third) == expected
    del third
    assert not dist.is_initialized()
    print("all ended")


def test_the_group_of_a_process_alone_ends_with_the_last_that_uses_it() -> None:
    code = "from tests.rollout.test_vllm_parallel import engines_of_a_process_alone as run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all ended\n")


def test_two_processes_are_needed() -> None:
    from verl.rollout.vllm_engine import vLLMRolloutEngine
    from verl.rollout.vllm_setup import VLLMSettings

    with pytest.raises(ValueError, match="tensor_parallel_size=2 needs 2 processes"):
        vLLMRolloutEngine("x", settings=VLLMSettings(tensor_parallel_size=2))
