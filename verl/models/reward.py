"""A learned reward: one score for a whole text, read at its last token."""

from pathlib import Path
from typing import ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from verl.config import ModelConfig
from verl.models.layout import layout_tokens, one_or_more_sequences
from verl.models.loading import is_sequence_classifier, load_sequence_classifier, saved_value_head
from verl.models.value import ValueModel, apply_head, save_with_value_head
from verl.models.wrapper import ModelWrapper, backbone_of, last_hidden_state


class RewardScorer(ModelWrapper):
    """Scores texts with a sequence-classification model of one label, or with a `ValueModel` (a saved critic).

    The last token is the last one with attention_mask 1. transformers looks for the last id that is not the pad id
    instead, which reads the wrong token when a text ends in the pad token (often the end token itself). Models without
    a head per token (encoders that classify a pooled state) keep their own forward, which goes by the attention mask.
    """

    input_keys: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask")

    def __init__(self, model: nn.Module) -> None:
        backbone = model.hf_model if isinstance(model, ValueModel) else model
        super().__init__(backbone, supports_packing=False)
        self.value_head = model.value_head if isinstance(model, ValueModel) else None
        labels = getattr(getattr(model, "config", None), "num_labels", 1)
        if self.value_head is None and labels != 1:
            raise ValueError(f"a reward model gives one score, but {type(model).__name__} has num_labels={labels}")

    @classmethod
    def load(cls, config: ModelConfig, dtype: torch.dtype) -> "RewardScorer":
        """From the folder of a sequence classifier or of a saved `ValueModel`."""
        if config.path is not None and saved_value_head(config.path) is not None:
            return cls(ValueModel.load(config, dtype))
        return cls(load_sequence_classifier(config, dtype))

    @classmethod
    def to_train(cls, config: ModelConfig, dtype: torch.dtype) -> "RewardScorer":
        """As `load`; a language model, which has no head to score with, gets a new value head (all zeros)."""
        if config.path is not None and is_sequence_classifier(config):
            return cls.load(config, dtype)
        return cls(ValueModel.load(config, dtype))

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        """Write a folder that `load` reads."""
        save_with_value_head(self.hf_model, folder, state_dict)

    @one_or_more_sequences
    def forward(self, batch: TensorDict) -> dict[str, Tensor]:
        """`scores` [b] in fp32. Reads input_ids and attention_mask [b, L]; rows may be padded on either side.

        Rows may be of several texts, [b, k, L], which gives scores [b, k].
        """
        layout = layout_tokens(batch["input_ids"], batch["attention_mask"])
        last = layout.slot[:, -1]
        head = getattr(self.hf_model, "score", None)
        if self.value_head is not None:
            scores = apply_head(self.value_head, last_hidden_state(self.hf_model, layout)[last])
        elif isinstance(head, nn.Linear):
            scores = apply_head(head, last_hidden_state(backbone_of(self.hf_model), layout)[last])
        else:
            # An encoder looks both ways, so unlike a causal model it has to be told what is padding.
            outputs = self.hf_model(input_ids=layout.input_ids, attention_mask=layout.attention_mask)
            scores = outputs.logits.float().squeeze(-1)
        return {"scores": scores}
