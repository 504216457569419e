"""A learned scorer in one process."""

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from verl.config import PPOConfig
from verl.models.loading import load_model_tokenizer
from verl.models.reward import RewardScorer
from verl.models.text import Retokenizer, keep_last
from verl.models.wrapper import ModelWrapper
from verl.protocol import DataProto
from verl.worker.dispatch import Dispatch, register
from verl.worker.model_worker import ModelSettings, ModelWorker, micro_batching


class RewardModelWorker(ModelWorker):
    """Scores whole responses with a sequence classifier or a value-headed model.

    A model with the policy's vocabulary reads the policy's own tokens. One with another, or for which
    `model.tokenizer_path` is set, reads the text again with its own tokenizer (see `Retokenizer`).

    `policy_tokenizer` is the policy's, where the config does not name it.
    """

    config: PPOConfig

    def __init__(
        self, config: PPOConfig, role: str = "rm", module: nn.Module | None = None, policy_tokenizer: Any = None
    ) -> None:
        super().__init__(config, role, module)
        self._policy_tokenizer = policy_tokenizer
        self._tokenizer: Any = None
        self._retokenizer: Retokenizer | None = None

    def settings(self) -> ModelSettings:
        rm = self.config.reward.reward_model
        return ModelSettings(model=rm.model, fsdp=rm.fsdp)

    def build_module(self) -> ModelWrapper:
        rm, policy = self.config.reward.reward_model, self.config.actor_rollout_ref.model
        theirs = self._policy_tokenizer or load_model_tokenizer(policy, chat_template=self.config.data.chat_template)
        # A scorer that was handed over without a tokenizer reads the policy's tokens.
        named = rm.model.path is not None or rm.model.tokenizer_path is not None
        self._tokenizer = own = load_model_tokenizer(rm.model) if named else theirs
        if own.get_vocab() != theirs.get_vocab() or rm.model.tokenizer_path is not None:
            self._retokenizer = Retokenizer(theirs, own, rm.max_length, rm.text_format, rm.text_end)
        given = self.given_module()
        return RewardScorer.load(rm.model, self.master_dtype()) if given is None else RewardScorer(given)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_rm_score(self, batch: DataProto) -> DataProto:
        """`rm_scores` [B, R]: the score of each row at its last response token, 0 elsewhere.

        ValueError for a score that is not finite, with the text's end.
        """
        rm, mask = self.config.reward.reward_model, batch.batch["response_mask"]
        if self._retokenizer is None:
            texts = batch.batch.select("input_ids", "attention_mask", "position_ids")
        else:
            texts = self._retokenizer(batch.batch, batch.non_tensor_batch.get("raw_prompt"))
        if self._retokenizer is None and rm.max_length is not None:
            texts["attention_mask"] = keep_last(texts["attention_mask"], rm.max_length)
        micro = micro_batching(rm.micro_batch_size_per_gpu, False, 0)
        order = texts["attention_mask"].sum(-1).argsort()  # rows of near length share a micro-batch
        scores = self.forward_rows(DataProto(texts[order]), micro)["scores"][order.argsort()].float()
        self._check_finite(scores, texts, mask.any(-1))
        rows = torch.arange(len(batch))
        last = (mask * torch.arange(1, mask.shape[1] + 1)).argmax(-1)
        rm_scores = torch.zeros(mask.shape, dtype=torch.float32)
        rm_scores[rows, last] = torch.where(mask.any(-1), scores, 0)
        return DataProto.from_dict({"rm_scores": rm_scores})

    def _check_finite(self, scores: Tensor, texts: TensorDict, counted: Tensor) -> None:
        for row in torch.nonzero(counted & ~scores.isfinite()).flatten().tolist():
            ids = texts["input_ids"][row][texts["attention_mask"][row].bool()]
            raise ValueError(
                f"the reward model gave the score {float(scores[row])} to a text of {len(ids)} tokens that ends in "
                f"{self._tokenizer.decode(ids[-20:])!r}: look at its weights, or compute in another dtype "
                "(reward.reward_model.fsdp.mixed_precision.param_dtype)"
            )
