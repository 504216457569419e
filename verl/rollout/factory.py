"""Which rollout engine a name means."""

import logging
from collections.abc import Callable

import torch
from torch import nn

from verl.config import RolloutConfig
from verl.models.wrapper import copy_with_dtype
from verl.rollout.base import RolloutEngine
from verl.utils.backends import get_available_backends

logger = logging.getLogger(__name__)

RolloutFactory = Callable[[RolloutConfig, nn.Module, torch.dtype, str, int], RolloutEngine]


def build_rollout(
    config: RolloutConfig, causal_lm: nn.Module, *, dtype: torch.dtype, device: str, seed: int
) -> RolloutEngine:
    """The engine that `config.name` asks for, for the architecture of `causal_lm` (full weights, not yet sharded).

    It may start without weights: `update_weights` must bring them before it generates.
    ValueError when no engine has that name, when it is not installed, or when it cannot run such a model.
    """
    if config.name not in ROLLOUT_ENGINES:
        raise ValueError(
            f"actor_rollout_ref.rollout.name={config.name!r} is not a rollout engine: "
            f"expected one of {', '.join(ROLLOUT_ENGINES)}"
        )
    if not hasattr(causal_lm, "config"):
        raise ValueError(
            f"the policy is a {type(causal_lm).__name__}, which generates nothing: rollouts need a causal language "
            "model of transformers"
        )
    return ROLLOUT_ENGINES[config.name](config, causal_lm, dtype, device, seed)


def _auto(config: RolloutConfig, causal_lm: nn.Module, dtype: torch.dtype, device: str, seed: int) -> RolloutEngine:
    reason = _why_not_vllm(config, causal_lm, device)
    if reason is None:
        logger.info("rollout.name=auto generates with vLLM, which is installed and runs %s", type(causal_lm).__name__)
        return _vllm(config, causal_lm, dtype, device, seed)
    logger.info("rollout.name=auto generates with transformers (hf), since %s", reason)
    return _hf(config, causal_lm, dtype, device, seed)


def _why_not_vllm(config: RolloutConfig, causal_lm: nn.Module, device: str) -> str | None:
    if not get_available_backends()["vllm"]:
        return "vLLM is not installed"
    from verl.rollout.vllm_setup import unsupported_reason

    try:
        return unsupported_reason(causal_lm, device, config.tensor_model_parallel_size)
    except (ImportError, OSError, RuntimeError) as error:  # such as a build for another torch
        return f"vLLM is installed but cannot be imported ({type(error).__name__}: {error})"


def _vllm(config: RolloutConfig, causal_lm: nn.Module, dtype: torch.dtype, device: str, seed: int) -> RolloutEngine:
    from verl.rollout.vllm_engine import vLLMRolloutEngine
    from verl.rollout.vllm_setup import VLLMSettings

    settings = VLLMSettings(
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        gpu_memory_utilization=config.gpu_memory_utilization,
        enforce_eager=config.enforce_eager,
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        load_format=config.load_format,
        tensor_parallel_size=config.tensor_model_parallel_size,
        sleep_level=config.sleep_level if config.free_cache_engine else 0,
        engine_kwargs=config.engine_kwargs.get("vllm", {}),
    )
    return vLLMRolloutEngine.for_module(causal_lm, dtype, device, seed, settings)


def _hf(config: RolloutConfig, causal_lm: nn.Module, dtype: torch.dtype, device: str, seed: int) -> RolloutEngine:
    from verl.rollout.hf_engine import HFRolloutEngine

    twin = copy_with_dtype(causal_lm, dtype).requires_grad_(False)
    return HFRolloutEngine(twin.to(device), device=device, seed=seed, micro_batch_size=config.micro_batch_size)


ROLLOUT_ENGINES: dict[str, RolloutFactory] = {"auto": _auto, "hf": _hf, "vllm": _vllm}
