"""The numbers that each key may hold, as a table."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from verl.config.tree import leaves, value_at


@dataclass(frozen=True)
class Range:
    """Finite numbers between `low` and `high`; `above` and `below` leave the bound itself out."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False
    also: float | None = None
    """One more number with a meaning of its own."""

    def __contains__(self, number: float) -> bool:
        if number == self.also:
            return True
        low = number > self.low if self.above else number >= self.low
        high = number < self.high if self.below else number <= self.high
        return abs(number) < math.inf and low and high

    def __str__(self) -> str:
        words = []
        if math.isfinite(self.low):
            words.append(f"{'above' if self.above else 'at least'} {self.low:g}")
        if math.isfinite(self.high):
            words.append(f"{'below' if self.below else 'at most'} {self.high:g}")
        text = " and ".join(words) or "a finite number"
        return text if self.also is None else f"{text}, or {self.also:g}"


ANY_NUMBER = Range()
POSITIVE = Range(low=0, above=True)
NOT_NEGATIVE = Range(low=0)
COUNT = Range(low=1)
SHARE = Range(low=0, high=1)
COUNT_OR_ALL = Range(low=1, also=-1)

# Keys, or patterns of keys, in which `*` stands for anything. A null is never out of range.
RANGES: dict[str, Range] = {
    "data.train_batch_size": COUNT,
    "data.val_batch_size": COUNT,
    "data.max_length": COUNT,
    "data.max_prompt_length": COUNT,
    "data.max_response_length": COUNT,
    "data.filter_overlong_prompts_workers": COUNT,
    "data.dataloader_num_workers": NOT_NEGATIVE,
    "data.*_max_samples": COUNT_OR_ALL,
    "*.seed": Range(low=0, high=2**63 - 1),
    "*.ppo_mini_batch_size": COUNT,
    "*micro_batch_size*": COUNT,
    "*.ppo_epochs": COUNT,
    "*max_token_len_per_gpu": COUNT,
    "*.actor.clip_ratio": POSITIVE,
    "*.actor.clip_ratio_low": POSITIVE,
    "*.actor.clip_ratio_high": POSITIVE,
    "*.actor.clip_ratio_c": Range(low=1, above=True),
    "*.actor.loss_scale_factor": POSITIVE,
    "*.actor.entropy_coeff": ANY_NUMBER,
    "*.actor.kl_loss_coef": NOT_NEGATIVE,
    "critic.cliprange_value": NOT_NEGATIVE,
    "*optim.lr": POSITIVE,
    "*optim.eps": POSITIVE,
    "*optim.weight_decay": NOT_NEGATIVE,
    "*optim.clip_grad": NOT_NEGATIVE,
    "*optim.lr_warmup_steps": Range(low=0, also=-1),
    "*optim.lr_warmup_steps_ratio": SHARE,
    "*optim.min_lr_ratio": SHARE,
    "*.fsdp_size": COUNT_OR_ALL,
    "*.rollout.prompt_length": COUNT,
    "*.rollout.response_length": COUNT,
    "*.rollout.*temperature": NOT_NEGATIVE,
    "*.rollout.*top_p": Range(low=0, high=1, above=True),
    "*.rollout.*top_k": COUNT_OR_ALL,
    "*.rollout.n": COUNT,
    "*.rollout.tensor_model_parallel_size": COUNT,
    "*.rollout.max_model_len": COUNT,
    "*.rollout.max_num_*": COUNT,
    "*.rollout.sleep_level": Range(low=1, high=2),
    "*.rollout.gpu_memory_utilization": Range(low=0, high=1, above=True),
    "*.rollout.update_weights_bucket_megabytes": COUNT,
    "*.rollout.max_logprob_diff": POSITIVE,
    "*.rollout.val_kwargs.n": COUNT,
    "reward.reward_model.max_length": COUNT,
    "reward.*weight": ANY_NUMBER,
    "reward.num_workers": NOT_NEGATIVE,
    "reward.*timeout_s": POSITIVE,
    "reward.default_score": ANY_NUMBER,
    "reward.reward_kwargs.max_resp_len": COUNT,
    "reward.reward_kwargs.overlong_buffer_cfg.len": COUNT,
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": NOT_NEGATIVE,
    "reward.judge.rate": POSITIVE,
    "reward.judge.concurrency": COUNT,
    "reward.judge.retries": NOT_NEGATIVE,
    "reward.judge.max_tokens": COUNT,
    "reward.judge.temperature": NOT_NEGATIVE,
    "algorithm.*beta": POSITIVE,
    "algorithm.*label_smoothing": Range(low=0, high=0.5, below=True),
    "algorithm.*simpo_gamma": ANY_NUMBER,
    "algorithm.*desirable_weight": NOT_NEGATIVE,
    "algorithm.gamma": SHARE,
    "algorithm.lam": SHARE,
    "algorithm.kl_ctrl.kl_coef": NOT_NEGATIVE,
    "algorithm.filter_groups.max_num_gen_batches": NOT_NEGATIVE,
    "algorithm.rollout_correction.rollout_is_threshold": POSITIVE,
    "trainer.total_epochs": COUNT,
    "trainer.total_training_steps": COUNT,
    "trainer.nnodes": COUNT,
    "trainer.n_gpus_per_node": COUNT,
    "trainer.critic_warmup": NOT_NEGATIVE,
    "trainer.test_freq": Range(low=0, also=-1),
    "trainer.save_freq": Range(low=0, also=-1),
    "trainer.log_val_generations": NOT_NEGATIVE,
    "trainer.ray_wait_register_center_timeout": POSITIVE,
    "trainer.placement_timeout_s": POSITIVE,
    "trainer.worker_timeout_s": POSITIVE,
}


def range_of(path: str) -> Range | None:
    """The range of a key; the first pattern that fits counts."""
    return next((allowed for pattern, allowed in RANGES.items() if fnmatchcase(path, pattern)), None)


def out_of_range(config: Any) -> Iterator[str]:
    """A sentence for each number that its key cannot hold."""
    for path, leaf in leaves(type(config)).items():
        allowed, value = range_of(path), value_at(config, path)
        if allowed is None or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{path}={value!r}: expected {leaf.type_name}"
        elif value not in allowed:
            yield f"{path}={value}: must be {allowed}"
