"""What vLLM needs before it starts: a model it supports, arguments it knows, and a process that it leaves as it was."""

import copy
import dataclasses
import difflib
import gc
import logging
import os
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from verl.models.loading import heads_problem
from verl.rollout.vllm_parallel import Replica
from verl.utils.memory import available_memory

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.llm_engine import LLMEngine

ENVIRONMENT = {
    # The engine core runs in this very process: that is what lets the trainer hand its tensors over.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # vllm_sampler.py is written for the V1 model runner.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Unless asked for otherwise, vLLM neither reports its use nor tells about every start.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
OF_THE_SAMPLER = frozenset(
    ("speculative_config", "spec_method", "spec_model", "spec_tokens", "logits_processors", "logprobs_mode")
)
"""Engine arguments that would be without effect, or wrong, with the sampler of vllm_sampler.py."""
CPU_BLOCK_SIZE = 32
"""Tokens per KV block on a CPU. Only full blocks are shared, and vLLM's 128 are more than many prompts have."""
CPU_SEQUENCES = 64
"""Sequences decoded at once on a CPU. More bring little there: the products of 64 rows already fill the cores."""


@dataclass(frozen=True)
class VLLMSettings:
    """How a vLLM engine runs. None leaves a choice to vLLM, unless said otherwise.

    Attributes:
        max_model_len: most tokens of prompt and response together; None is the model's own limit.
        max_num_seqs: requests that run together; None is 64 on a CPU.
        max_num_batched_tokens: most tokens of one forward pass.
        gpu_memory_utilization: share of the device's memory for weights, activations and KV cache; on a CPU, the
            share of free memory that the KV cache takes at most.
        enforce_eager: run without compiled graphs; None does on a CPU.
        enable_prefix_caching: share the KV cache of equal beginnings.
        enable_chunked_prefill: let long prompts run in pieces beside the others' decoding.
        load_format: "dummy" starts without weights, which `update_weights` must bring; others read the model's files.
        tensor_parallel_size: processes that share one replica: consecutive ranks of the default process group, whose
            size it must divide.
        sleep_level: what `sleep` gives back on CUDA: 0 nothing, 1 the KV cache and the weights, which go to the CPU's
            memory, 2 both, and `update_weights` must bring the weights again. On a CPU, 1 and 2 free the KV cache.
        engine_kwargs: vLLM engine arguments beyond these.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.5
    enforce_eager: bool | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool | None = None
    load_format: str = "dummy"
    tensor_parallel_size: int = 1
    sleep_level: int = 2
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, model: str, dtype: torch.dtype, device: str) -> dict[str, Any]:
        """vLLM's names for these, without `engine_kwargs`."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del own["sleep_level"], own["engine_kwargs"]
        if device == "cpu":
            own["max_num_seqs"] = self.max_num_seqs or CPU_SEQUENCES
        return {
            **own,
            "model": model,
            "dtype": str(dtype).removeprefix("torch."),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # sampling comes with each request, never from the model's folder
            "seed": 0,  # so do seeds
            "enforce_eager": device == "cpu" if self.enforce_eager is None else self.enforce_eager,
            "distributed_executor_backend": "uni" if self.tensor_parallel_size == 1 else "external_launcher",
            "enable_sleep_mode": device != "cpu" and self.sleep_level > 0,
        }


def unsupported_reason(module: Any, device: str, tensor_parallel_size: int = 1) -> str | None:
    """Why vLLM cannot run a model of the shape of `module`, or None when it can. vLLM must be installed."""
    architecture: str = type(module).__name__
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "save_pretrained"):
        return f"vLLM reads a model's shape from its transformers config, and {architecture} has none"
    problem = heads_problem(config.get_text_config().to_dict(), tensor_parallel_size)
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
                return f"its attention heads have size {size}, and vLLM on a CPU takes {', '.join(map(str, sizes))}"
    return None


def write_config(module: Any, folder: Path) -> None:
    """A folder from which vLLM reads the shape of `module`, a model of transformers; its weights come otherwise."""
    config = copy.deepcopy(module.config)
    config.architectures = [type(module).__name__]
    # How a file of weights was quantized says nothing about the trainer's weights.
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    config.save_pretrained(folder)


def start_engine(settings: VLLMSettings, model: str, dtype: torch.dtype, device: str, replica: Replica) -> "LLMEngine":
    """A vLLM engine in this process.

    ValueError for an engine argument that vLLM does not know, that has a key of its own, or whose value vLLM refuses.
    """
    arguments, extra = settings.arguments(model, dtype, device), dict(settings.engine_kwargs)
    with process_kept():
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        _check_extra(extra, arguments, {known.name for known in dataclasses.fields(EngineArgs)})
        if device == "cpu":
            extra.setdefault("block_size", CPU_BLOCK_SIZE)
        config = EngineArgs(**arguments, **extra).create_engine_config()
        if device == "cpu" and config.cache_config.kv_cache_memory_bytes is None:
            config.cache_config.kv_cache_memory_bytes = cpu_kv_cache_bytes(config)
        engine = LLMEngine(config, _executor(config, device, replica), log_stats=False, multiprocess_mode=False)
    replica.unlink_shared_memory()
    # A step that fails raises; vLLM would print all its requests before that, which hides it.
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)
    # Collected, an engine would take the trainer's process group along; `stop_engine` does not.
    engine.engine_core._finalizer.detach()
    gc.unfreeze()  # vLLM hides all objects of the process from the collector, the trainer's as well
    return engine


def stop_engine(engine: "LLMEngine") -> None:
    """End an engine and free what it holds."""
    from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO

    core = engine.engine_core.engine_core
    for layer in model_runner_of(engine).get_model().modules():
        LAYERWISE_INFO.pop(layer, None)  # what vLLM notes here for updates refers to the layer, which then stays
    core.model_executor.shutdown()
    core.scheduler.shutdown()


def end_groups() -> None:
    """End the process groups that vLLM keeps for all engines of a process, and the one that they were made out of."""
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()


def _check_extra(extra: Mapping[str, Any], taken: Mapping[str, Any], known: set[str]) -> None:
    for name in extra:
        path = f"actor_rollout_ref.rollout.engine_kwargs.vllm.{name}"
        if name in taken:
            raise ValueError(f"{path} is set by a key of its own or by the trainer: leave it out of engine_kwargs")
        if name in OF_THE_SAMPLER:
            raise ValueError(f"{path} is not supported: vLLM's sampler does not run here (see vllm_sampler.py)")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; the nearest one is {near[0]!r}" if near else ""
            raise ValueError(f"{path}: vLLM has no engine argument {name!r}{hint}")


def cpu_kv_cache_bytes(config: "VllmConfig") -> int:
    """Room for all sequences at full length, within the share of memory that `gpu_memory_utilization` names.

    Left to itself vLLM takes that share whole, once for every process, and walks through all of it in time.
    """
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    width = model.get_num_kv_heads(parallel) * model.get_head_size() * model.dtype.itemsize
    block = 2 * model.get_num_layers(parallel) * width * cache.block_size
    per_sequence = -(-model.max_model_len // cache.block_size) + 1
    wanted = config.scheduler_config.max_num_seqs * per_sequence * block
    # Processes of one machine share its memory; only the launcher knows how many there are.
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    limit = int(available_memory() * cache.gpu_memory_utilization) // processes
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


def _executor(config: "VllmConfig", device: str, replica: Replica) -> type[Any]:
    """vLLM's executor inside this process, on the trainer's device and, with tensor parallelism, its process group."""
    from vllm.v1.executor import Executor

    base = Executor.get_class(config)
    local_rank = torch.cuda.current_device() if device == "cuda" else int(os.environ.get("LOCAL_RANK", "0"))

    class InProcess(base):  # type: ignore[misc, valid-type]
        def _distributed_args(self) -> tuple[str, int, int]:
            if replica.size == 1:
                method, rank, _ = super()._distributed_args()
                return method, rank, local_rank
            # The process group exists already, so of this address only the name is used; see `Replica.name`.
            return f"env://:{replica.name}", dist.get_rank(), local_rank

    return InProcess


def model_runner_of(engine: "LLMEngine") -> Any:
    """The object of vLLM that holds the model, the sampler and the KV cache of this process."""
    return engine.model_executor.driver_worker.worker.model_runner
