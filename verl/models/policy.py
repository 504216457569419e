"""The policy: log-probabilities (and entropies) of the response tokens under a causal language model."""

import inspect

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from verl.config import ModelConfig
from verl.models.layout import TokenLayout, layout_tokens, one_or_more_sequences, response_slots
from verl.models.loading import load_causal_lm
from verl.models.probe import has_plain_head, keeps_packed_rows_apart
from verl.models.token_stats import chunked_token_statistics, token_statistics
from verl.models.wrapper import ModelWrapper, backbone_of, last_hidden_state, logits_of, run_model


class PolicyModel(ModelWrapper):
    """Wraps a causal language model: a Hugging Face one, or any causal nn.Module from ids [b, W] to logits [b, W, V].

    A module of the user's own is called with input_ids, and with attention_mask and position_ids if its `forward`
    names them; it may return the logits or an object with `.logits`.
    """

    def __init__(self, hf_model: nn.Module) -> None:
        super().__init__(hf_model, supports_packing=keeps_packed_rows_apart(hf_model))
        self._has_plain_head = has_plain_head(hf_model)

    @classmethod
    def load(cls, config: ModelConfig, dtype: torch.dtype) -> "PolicyModel":
        return cls(load_causal_lm(config, dtype))

    @one_or_more_sequences
    def forward(
        self, batch: TensorDict, temperature: float = 1.0, compute_entropy: bool = False, remove_padding: bool = False
    ) -> dict[str, Tensor]:
        """`log_probs` [b, R] of response tokens under softmax(logits / temperature), and `entropy` [b, R] on demand.

        Both are fp32, and 0 where response_mask is 0. Reads input_ids and attention_mask [b, P + R] and response_mask
        [b, R]; the response is the last R columns. `remove_padding` packs the rows end to end. Rows may be of several
        sequences, [b, k, ...].
        """
        self.check_packing(remove_padding)
        ids, response_mask = batch["input_ids"], batch["response_mask"]
        layout = layout_tokens(ids, batch["attention_mask"], packed=remove_padding)
        rows, columns, slots = response_slots(layout, batch["attention_mask"], response_mask)
        labels = ids[:, -response_mask.shape[1] :][rows, columns]
        log_probs, entropy = self._statistics(layout, slots, labels, temperature, compute_entropy)
        outputs = {"log_probs": log_probs} if entropy is None else {"log_probs": log_probs, "entropy": entropy}
        return {
            name: values.new_zeros(response_mask.shape).index_put((rows, columns), values)
            for name, values in outputs.items()
        }

    @property
    def output_layer(self) -> nn.Linear | None:
        """The layer from hidden states to logits, when that is all there is between them."""
        # Looked up and not kept: registered here as well, its weight would have two names.
        return self.hf_model.get_output_embeddings() if self._has_plain_head else None

    def _statistics(
        self, layout: TokenLayout, slots: Tensor, labels: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        head = self.output_layer
        if head is not None:
            hidden = last_hidden_state(backbone_of(self.hf_model), layout)[slots]
            return chunked_token_statistics(hidden, head, head.out_features, labels, temperature, with_entropy)
        return token_statistics(self._own_logits(layout, slots), labels, temperature, with_entropy)

    def _own_logits(self, layout: TokenLayout, slots: Tensor) -> Tensor:
        """[n, V] from the model's own forward, which is asked to leave out columns that no row needs if it can."""
        if "logits_to_keep" not in inspect.signature(self.hf_model.forward).parameters or not len(slots):
            return logits_of(run_model(self.hf_model, layout)).flatten(0, 1)[slots]
        width = layout.input_ids.shape[1]
        columns, column = (slots % width).unique(return_inverse=True)
        logits = logits_of(run_model(self.hf_model, layout, logits_to_keep=columns))
        return logits[slots // width, column]
