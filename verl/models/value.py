"""The critic: a language model's backbone with a linear head that estimates the return still to come."""

from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from verl.config import ModelConfig
from verl.models.layout import layout_tokens, response_slots
from verl.models.loading import VALUE_HEAD_FILE, load_backbone, saved_value_head
from verl.models.probe import hidden_width, keeps_packed_rows_apart
from verl.models.wrapper import ModelWrapper, last_hidden_state, save_module


class ValueModel(ModelWrapper):
    """A backbone (`hf_model`, without output layer) and `value_head`, a Linear(H, 1).

    A new head is all zeros, so that a fresh critic says 0 everywhere instead of noise: with noise the first
    advantages would be random. The head still learns, since its own gradient does not depend on its weights.

    A saved critic is a folder of its own: the backbone as a Hugging Face folder, plus `value_head.safetensors`.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__(backbone, supports_packing=keeps_packed_rows_apart(backbone))
        self.value_head = _zero_head(hidden_width(backbone), next(backbone.parameters()))

    @classmethod
    def load(cls, config: ModelConfig, dtype: torch.dtype) -> "ValueModel":
        """From a language model's folder (a new head) or a saved critic's folder (its own head)."""
        model = cls(load_backbone(config, dtype))
        saved_head = None if config.path is None else saved_value_head(config.path)
        if saved_head is not None:
            load_value_head(model.value_head, saved_head)
        return model

    def forward(self, batch: TensorDict, remove_padding: bool = False) -> dict[str, Tensor]:
        """`values` [b, R] in fp32: column t is the value BEFORE response token t is produced; 0 under a mask of 0.

        Reads input_ids and attention_mask [b, P + R] and response_mask [b, R]. `remove_padding` packs rows end to end.
        """
        self.check_packing(remove_padding)
        response_mask = batch["response_mask"]
        layout = layout_tokens(batch["input_ids"], batch["attention_mask"], packed=remove_padding)
        rows, columns, slots = response_slots(layout, batch["attention_mask"], response_mask)
        hidden = last_hidden_state(self.hf_model, layout)[slots]
        values = apply_head(self.value_head, hidden)
        return {"values": values.new_zeros(response_mask.shape).index_put((rows, columns), values)}

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        save_with_value_head(self.hf_model, folder, state_dict)


def apply_head(head: nn.Linear, hidden: Tensor) -> Tensor:
    """[n] in fp32, from hidden states [n, H]: bf16 would leave values and scores only 3 significant digits."""
    bias = None if head.bias is None else head.bias.float()
    return nn.functional.linear(hidden.float(), head.weight.float(), bias).squeeze(-1)


def load_value_head(head: nn.Linear, path: Path) -> None:
    """Fill `head` from `value_head.safetensors`. ValueError when the file holds something else."""
    from safetensors.torch import load_file

    state = {name.removeprefix("value_head."): tensor for name, tensor in load_file(path).items()}
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if found != expected:
        raise ValueError(f"{path} holds {found}, but this model's value head needs {expected}")
    head.load_state_dict(state)


def save_with_value_head(hf_model: nn.Module, folder: Path, state_dict: dict[str, Tensor]) -> None:
    """Write `hf_model` as a Hugging Face folder and the value head, if there is one, into a file beside it."""
    from safetensors.torch import save_file

    head = {name: tensor for name, tensor in state_dict.items() if name.startswith("value_head.")}
    save_module(hf_model, folder, {name: tensor for name, tensor in state_dict.items() if name not in head})
    if head:
        save_file({name: tensor.contiguous() for name, tensor in head.items()}, folder / VALUE_HEAD_FILE)


def _zero_head(size: int, like: Tensor) -> nn.Linear:
    head = nn.Linear(size, 1, device=like.device, dtype=like.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
