"""What a model can do, found by trying it on six tokens: names of classes and config keys would only be guesses."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from verl.models.layout import layout_tokens
from verl.models.wrapper import backbone_of, last_hidden_state, logits_of, run_model


def has_plain_head(hf_model: nn.Module) -> bool:
    """Whether the model's logits are exactly output_layer(hidden states of its `base_model`).

    Not so for models that do more (scaled or soft-capped logits), nor for modules that are no Hugging Face models.
    """
    head = getattr(hf_model, "get_output_embeddings", lambda: None)()
    backbone = backbone_of(hf_model)
    if not isinstance(head, nn.Linear) or backbone is hf_model:
        return False
    seen: dict[str, Tensor] = {}

    def remember(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        seen["input"], seen["output"] = args[0].flatten(0, 1), output

    hook = head.register_forward_hook(remember)
    try:
        with torch.no_grad():
            layout = layout_tokens(*_two_rows(head.weight.device))
            logits = logits_of(run_model(hf_model, layout))
            hidden = last_hidden_state(backbone, layout)
    finally:
        hook.remove()
    same_hidden = torch.allclose(seen["input"].float(), hidden.float(), rtol=1e-3, atol=1e-3)
    return same_hidden and torch.equal(seen["output"].float(), logits.float())


def keeps_packed_rows_apart(model: nn.Module) -> bool:
    """Whether rows packed end to end give what they give one by one. `model` is a backbone or a whole model."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    ids, mask = _two_rows(next(model.parameters()).device)
    with torch.no_grad():
        packed, alone = (_first_output(run_model(model, layout_tokens(ids, mask, packed))) for packed in (True, False))
    difference = (packed.flatten(0, 1).float() - alone.flatten(0, 1).float()).norm()
    # Rounding of the model's own dtype, with room to spare; rows that see each other differ by more.
    tolerance = max(8 * torch.finfo(alone.dtype).eps, 1e-4)
    return bool(difference <= tolerance * alone.float().norm())


def hidden_width(backbone: nn.Module) -> int:
    """Width H of the backbone's last hidden state."""
    with torch.no_grad():
        return last_hidden_state(backbone, layout_tokens(*_two_rows(next(backbone.parameters()).device))).shape[-1]


def _two_rows(device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[1, 2, 3], [3, 2, 1]], device=device)
    return ids, torch.ones_like(ids)


def _first_output(outputs: Any) -> Tensor:
    return outputs.last_hidden_state if hasattr(outputs, "last_hidden_state") else logits_of(outputs)
