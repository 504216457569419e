"""Generation in one process: a rollout engine, and what a batch needs to go through it."""

import torch
from torch import nn

from verl.config import PPOConfig
from verl.protocol import DataProto
from verl.rollout import build_rollout
from verl.rollout.base import RolloutEngine, Sampling
from verl.rollout.batching import prompts_from, responses_to_batch
from verl.utils.backends import resolve_dtype
from verl.utils.seeding import derive_seed
from verl.worker.model_worker import ModelWorker


def rollout_dtype(config: PPOConfig, device: str) -> torch.dtype:
    """The dtype of the weights while generating, for a resolved config."""
    return resolve_dtype(config.actor_rollout_ref.rollout.dtype, device)


class Generation:
    """The rollout engine of one process.

    Args:
        config: resolved.
        causal_lm: the policy, for its architecture; its weights come by `engine.update_weights`.
        rank: this process among those that generate; replicas get different seeds.
    """

    def __init__(self, config: PPOConfig, causal_lm: nn.Module, device: str, rank: int) -> None:
        self.config = config.actor_rollout_ref.rollout
        self.engine: RolloutEngine = build_rollout(
            self.config,
            causal_lm,
            dtype=rollout_dtype(config, device),
            device=device,
            seed=derive_seed(config.trainer.seed, "rollout", rank),
        )

    def respond(self, prompts: DataProto) -> DataProto:
        """The columns of a response for each row of prompts [B, P].

        `meta_info`: `pad_token_id`, `eos_token_ids`, and `sampling`: "train" samples as actor_rollout_ref.rollout says,
        "validate" as its val_kwargs, "greedy" takes the most likely tokens.
        A column `seed` [B] fixes each row's sample by itself.
        """
        meta = prompts.meta_info
        sampling = self._sampling(meta["sampling"], meta["eos_token_ids"])
        seeds = prompts.batch["seed"].tolist() if "seed" in prompts.batch.keys() else None  # noqa: SIM118
        completions = self.engine.generate(prompts_from(prompts.batch), sampling, seeds)
        return DataProto(responses_to_batch(prompts.batch, completions, sampling.max_tokens, meta["pad_token_id"]))

    def _sampling(self, kind: str, eos_token_ids: list[int]) -> Sampling:
        rollout = self.config
        chosen = rollout.val_kwargs if kind == "validate" else rollout
        greedy = kind == "greedy" or not chosen.do_sample
        assert rollout.response_length is not None
        ends = [] if rollout.ignore_eos else eos_token_ids
        return Sampling(
            max_tokens=rollout.response_length,
            temperature=0.0 if greedy else chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            ignore_eos=rollout.ignore_eos,
            stop_token_ids=tuple(sorted({*rollout.stop_token_ids, *ends})),
        )


class GeneratingWorker(ModelWorker):
    """A process with a rollout engine, beside whatever else it does."""

    config: PPOConfig
    _generation: Generation | None = None

    def start_generation(self, causal_lm: nn.Module) -> None:
        """Start the engine for the architecture of `causal_lm`, and take this process's place on the mesh "rollout"."""
        size = self.config.actor_rollout_ref.rollout.tensor_model_parallel_size
        self.register_mesh("rollout", self.rank // size, self.world_size // size, collect=self.rank % size == 0)
        self._generation = Generation(self.config, causal_lm, self.device, self.rank)

    @property
    def generation(self) -> Generation:
        if self._generation is None:
            raise RuntimeError(f"role {self.role}: init_model() must be called before anything else")
        return self._generation

    def close(self) -> None:
        if self._generation is not None:
            self._generation.engine.close()
        super().close()
