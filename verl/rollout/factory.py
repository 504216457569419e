"""Which rollout engine a name means."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from verl.config import RolloutConfig
from verl.rollout.base import RolloutEngine

RolloutFactory = Callable[[RolloutConfig, nn.Module, torch.dtype, str, int], RolloutEngine]


def build_rollout(
    config: RolloutConfig, causal_lm: nn.Module, *, dtype: torch.dtype, device: str, seed: int
) -> RolloutEngine:
    """The engine that `config.name` asks for, for the architecture of `causal_lm` (full weights, not yet sharded).

    ValueError when no engine has that name.
    """
    if config.name not in ROLLOUT_ENGINES:
        raise ValueError(
            f"actor_rollout_ref.rollout.name={config.name!r} is not a rollout engine: "
            f"expected one of {', '.join(ROLLOUT_ENGINES)}"
        )
    return ROLLOUT_ENGINES[config.name](config, causal_lm, dtype, device, seed)


def _hf(config: RolloutConfig, causal_lm: nn.Module, dtype: torch.dtype, device: str, seed: int) -> RolloutEngine:
    from verl.rollout.hf_engine import HFRolloutEngine

    twin = copy.deepcopy(causal_lm)
    for parameter in twin.parameters():
        # Parameters only: rounding the rope frequencies (a buffer) to bf16 would shift every position.
        parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(False)
    return HFRolloutEngine(twin.to(device), device=device, seed=seed, micro_batch_size=config.micro_batch_size)


ROLLOUT_ENGINES: dict[str, RolloutFactory] = {"hf": _hf}
