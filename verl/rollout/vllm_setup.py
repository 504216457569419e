"""What vLLM needs before it starts: a model it supports, arguments it knows, and a process that it leaves as it was."""

import copy
import dataclasses
import difflib
import os
import random
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from verl.utils.backends import install_command

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.llm_engine import LLMEngine

ENVIRONMENT = {
    # The engine core runs in this very process: that is what lets the trainer hand its tensors over.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The sampler below is that of the V1 model runner.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Unless asked for otherwise, vLLM neither reports its use nor tells about every start.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
CPU_BLOCK_SIZE = 32
"""Tokens per KV block on a CPU. Only full blocks are shared, and vLLM's 128 are more than many prompts have."""
CPU_SEQUENCES = 64
"""Sequences decoded at once on a CPU. More bring little there: the products of 64 rows already fill the cores."""


def is_installed() -> bool:
    return find_spec("vllm") is not None


def require_vllm() -> None:
    """ValueError with the install command when vLLM is missing."""
    if not is_installed():
        raise ValueError(f"vLLM is not installed: {install_command('vllm')}, or use rollout.name=hf (or auto)")


def unsupported_reason(config: Any, architecture: str, device: str, tensor_parallel_size: int = 1) -> str | None:
    """Why vLLM cannot run a transformers model, or None when it can. vLLM must be installed.

    Args:
        config: the model's transformers config.
        architecture: the name of the model's class, such as LlamaForCausalLM.
    """
    problem = heads_problem(config, tensor_parallel_size)
    if problem is not None:
        return problem
    with process_kept():
        from vllm import ModelRegistry

        if architecture not in ModelRegistry.get_supported_archs():
            return f"vLLM has no {architecture}"
        if device == "cpu":
            from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

            text = config.get_text_config()
            size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            sizes = CPUAttentionBackend.get_supported_head_sizes()
            if size not in sizes:
                return f"attention heads of size {size}, and vLLM on a CPU takes {', '.join(map(str, sizes))}"
    return None


def heads_problem(config: Any, tensor_parallel_size: int) -> str | None:
    """Why attention heads cannot be split over `tensor_parallel_size` processes, or None."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    size = tensor_parallel_size
    if heads % size or (key_heads % size and size % key_heads):
        return f"{heads} attention heads ({key_heads} key/value heads) cannot be split over tensor parallel {size}"
    return None


def write_config(config: Any, architecture: str, folder: Path) -> None:
    """A folder from which vLLM reads a model's shape; its weights come from the trainer."""
    described = copy.deepcopy(config)
    described.architectures = [architecture]
    # What the file of weights was quantized to says nothing about the trainer's weights.
    if getattr(described, "quantization_config", None) is not None:
        del described.quantization_config
    described.save_pretrained(folder)


def start_engine(arguments: Mapping[str, Any], extra: Mapping[str, Any], device: str) -> "LLMEngine":
    """A vLLM engine in this process. `extra` are the user's own engine arguments.

    ValueError for an argument that vLLM does not know, that has a key of its own, or whose value vLLM refuses.
    """
    with process_kept():
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        _check_extra(extra, arguments, {field.name for field in dataclasses.fields(EngineArgs)})
        config = EngineArgs(**{**arguments, **extra}).create_engine_config()
        if device == "cpu" and config.cache_config.kv_cache_memory_bytes is None:
            config.cache_config.kv_cache_memory_bytes = cpu_kv_cache_bytes(config)
        engine = LLMEngine(config, _executor(config, device), log_stats=False, multiprocess_mode=False)
    return engine


def _check_extra(extra: Mapping[str, Any], taken: Mapping[str, Any], known: set[str]) -> None:
    for name in extra:
        path = f"actor_rollout_ref.rollout.engine_kwargs.vllm.{name}"
        if name in taken:
            raise ValueError(f"{path} is set by a key of its own or by the trainer: leave it out of engine_kwargs")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; the nearest one is {near[0]!r}" if near else ""
            raise ValueError(f"{path}: vLLM has no engine argument {name!r}{hint}")


def cpu_kv_cache_bytes(config: "VllmConfig") -> int:
    """Room for all sequences at full length, within the share of memory that `gpu_memory_utilization` names.

    Left to itself vLLM takes that share whole, once for every process, and walks through all of it in time.
    """
    import psutil

    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    width = model.get_num_kv_heads(parallel) * model.get_head_size() * model.dtype.itemsize
    block = 2 * model.get_num_layers(parallel) * width * cache.block_size
    per_sequence = -(-model.max_model_len // cache.block_size) + 1
    wanted = config.scheduler_config.max_num_seqs * per_sequence * block
    # Processes of one machine share its memory; only the launcher knows how many there are.
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    limit = int(psutil.virtual_memory().available * cache.gpu_memory_utilization) // processes
    return max(min(wanted, limit), (per_sequence + 1) * block)


def generators_kept() -> AbstractContextManager[None]:
    """Within it, random numbers drawn from torch's global generators leave them as they were."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_initialized() else [])


@contextmanager
def process_kept() -> Iterator[None]:
    """Undo what vLLM's import and start change for the rest of the process.

    It seeds the global generators, sets environment variables that other code reads (LOCAL_WORLD_SIZE, LD_PRELOAD and
    more) and replaces torch.set_num_threads by a function that does nothing. Its own variables, VLLM_*, stay.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    environment = dict(os.environ)
    numpy_state, python_state, set_num_threads = np.random.get_state(), random.getstate(), torch.set_num_threads
    try:
        with generators_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_num_threads = set_num_threads
        for name in {*environment, *os.environ}:
            if not name.startswith("VLLM_") and environment.get(name) != os.environ.get(name):
                os.environ.pop(name)
                if name in environment:
                    os.environ[name] = environment[name]


def _executor(config: "VllmConfig", device: str) -> type[Any]:
    """vLLM's executor inside this process, on the trainer's device and, with tensor parallelism, its process group.

    vLLM 0.32 names the shared memory of a CPU tensor-parallel group after the part of the init method behind the last
    colon, which for its own "env://" is the same in every group of every job on a machine: two jobs, or one beside the
    leftovers of a killed one, fail with `create shm ... errno: 17`. To be dropped when vLLM makes that name unique.
    """
    from vllm.v1.executor import Executor

    base = Executor.get_class(config)
    local_rank = torch.cuda.current_device() if device == "cuda" else int(os.environ.get("LOCAL_RANK", "0"))
    token = [uuid.uuid4().hex[:12]]
    alone = config.parallel_config.tensor_parallel_size == 1
    if not alone:
        dist.broadcast_object_list(token, src=0)

    class InProcess(base):  # type: ignore[misc, valid-type]
        def _distributed_args(self) -> tuple[str, int, int]:
            if alone:
                method, rank, _ = super()._distributed_args()
                return method, rank, local_rank
            # The process group exists already, so of the address only the name is used.
            return f"env://:{token[0]}", dist.get_rank(), local_rank

    return InProcess


class LogProbsBeforeFilters(torch.nn.Module):
    """The step of vLLM's sampler that applies top-k and top-p and samples, with log-probs from before those filters.

    vLLM offers log-probs before temperature ("raw") or after top-k and top-p ("processed"); the trainer's are of
    logits / temperature over all tokens, which is neither when both a temperature and a filter are used.
    Written for the V1 model runner of vLLM 0.32; to be dropped when vLLM offers such a mode.
    """

    def __init__(self, filter_and_sample: torch.nn.Module) -> None:
        super().__init__()
        self.filter_and_sample = filter_and_sample

    def forward(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # First, since filtering may write into the logits.
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
        tokens, _ = self.filter_and_sample(logits, generators, k, p)
        return tokens, log_probs


def model_runner_of(engine: "LLMEngine") -> Any:
    """The object of vLLM that holds the model, the sampler and the KV cache of this process."""
    return engine.model_executor.driver_worker.worker.model_runner


def install_log_probs(engine: "LLMEngine") -> None:
    """Make `engine` return log-probs under softmax(logits / temperature), before top-k and top-p."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.sample.sampler import Sampler

    sampler = model_runner_of(engine).sampler
    if not isinstance(sampler, Sampler):
        raise RuntimeError(
            f"the sampler of this vLLM is {type(sampler).__module__}.{type(sampler).__name__}, whose log-probs are not "
            "the trainer's; unset VLLM_USE_V2_MODEL_RUNNER, or use a version of vLLM that verl was tested with (0.32)"
        )
    sampler.topk_topp_sampler = LogProbsBeforeFilters(TopKTopPSampler("raw_logprobs"))
