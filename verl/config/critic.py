"""The critic: a value head on a language model."""

from dataclasses import dataclass

from verl.config.keys import key
from verl.config.model import FSDPConfig, ModelConfig, OptimConfig


def _critic_optim() -> OptimConfig:
    return OptimConfig(lr=1e-5)


@dataclass
class CriticConfig:
    enable: bool | None = key(None, "train a critic; null lets the advantage estimator decide (gae needs one)")
    model: ModelConfig = key(ModelConfig, "the critic's model; path null means the actor's")
    optim: OptimConfig = key(_critic_optim, "the critic's optimizer")
    fsdp: FSDPConfig = key(FSDPConfig, "how the critic is sharded")
    ppo_mini_batch_size: int | None = key(None, "prompts per optimizer step; null means the actor's")
    ppo_micro_batch_size_per_gpu: int | None = key(
        None, "samples per forward and backward pass of one process; null means the actor's"
    )
    use_dynamic_bsz: bool | None = key(
        None, "cut micro-batches by tokens instead of by samples; null means the actor's, unless the size above is set"
    )
    ppo_max_token_len_per_gpu: int = key(32768, "tokens per micro-batch, with use_dynamic_bsz")
    ppo_epochs: int | None = key(None, "passes over the batch of a step; null means the actor's")
    shuffle: bool = key(False, "visit the samples of a step in a seeded random order")
    cliprange_value: float = key(0.5, "clip range of the value loss around the old values; 0 turns clipping off")
    loss_agg_mode: str = key("token-mean", "aggregation of the value loss, as in actor.loss_agg_mode")
