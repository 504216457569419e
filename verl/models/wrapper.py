"""What policy, value and reward models have in common: how a model is copied, run, named, cut into blocks and saved."""

import copy
import inspect
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from verl.models.layout import TokenLayout

_PREFIX = "hf_model."


class ModelWrapper(nn.Module):
    """A model with what the engine needs to know of it. The wrapped model is `hf_model`, and may be any nn.Module.

    Dropout stays off, also while training (`train()` changes nothing): the log-probs of the update must be those of
    the same network that gave the old ones, or the ratio would not be 1 before the first step.
    """

    input_keys: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "response_mask")
    """The columns of a batch that `forward` reads."""
    hf_model: Any

    def __init__(self, hf_model: nn.Module, supports_packing: bool) -> None:
        super().__init__()
        self.hf_model = hf_model
        self.supports_packing = supports_packing
        self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def check_packing(self, remove_padding: bool) -> None:
        """ValueError when rows are to be packed and this model would let them see each other."""
        if remove_padding and not self.supports_packing:
            raise ValueError(
                f"{type(self.hf_model).__name__} does not keep packed rows apart (it ignores position ids that "
                "restart): set model.use_remove_padding=False"
            )

    def hf_name(self, name: str) -> str:
        """The name that the parameter `name` of this wrapper has in the wrapped model's own folder."""
        return name.removeprefix(_PREFIX)

    def blocks(self) -> list[nn.Module]:
        """The transformer layers: members of the ModuleList that holds most parameters; empty when there is none."""
        lists = [module for module in self.hf_model.modules() if isinstance(module, nn.ModuleList)]
        sizes = [sum(p.numel() for p in layers.parameters()) for layers in lists]
        return list(lists[sizes.index(max(sizes))]) if lists else []

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        """Write a folder in the Hugging Face layout; `state_dict` has full CPU tensors under Hugging Face names."""
        save_module(self.hf_model, folder, state_dict)


def copy_with_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy with parameters in `dtype`. Buffers keep theirs: rounded rope frequencies would shift every position."""
    twin = copy.deepcopy(module)
    for parameter in twin.parameters():
        parameter.data = parameter.data.to(dtype)
    return twin


def save_module(module: Any, folder: Path, state_dict: dict[str, Tensor]) -> None:
    """As a Hugging Face folder when the model knows how; otherwise its weights as `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "save_pretrained"):
        module.save_pretrained(folder, state_dict=state_dict)
    else:
        from safetensors.torch import save_file

        save_file({name: tensor.contiguous() for name, tensor in state_dict.items()}, folder / "model.safetensors")


def run_model(module: nn.Module, layout: TokenLayout, **extra: Any) -> Any:
    """Call a model on laid-out tokens with those arguments that its `forward` names.

    Aligned rows need no mask: padding stands on the right, where a causal model does not look. A Hugging Face model
    is told so by a mask of ones, which lets it skip masks altogether. Packed rows go without a mask, and the position
    ids that restart tell them apart. Other modules get the mask of the real tokens, should they want one.

    ValueError for a token id that the model does not know.
    """
    _check_ids(module, layout.input_ids)
    parameters = inspect.signature(module.forward).parameters
    is_hugging_face = hasattr(module, "config")
    arguments: dict[str, Any] = {"use_cache": False, **extra} if "use_cache" in parameters else dict(extra)
    if "attention_mask" in parameters and not layout.packed:
        arguments["attention_mask"] = torch.ones_like(layout.input_ids) if is_hugging_face else layout.attention_mask
    if "position_ids" in parameters and (layout.packed or not is_hugging_face):
        arguments["position_ids"] = layout.position_ids
    return module(layout.input_ids, **arguments)


def _check_ids(module: Any, input_ids: Tensor) -> None:
    """The embedding itself would not say which model it is, and on CUDA it would take the process with it."""
    embedding = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
    size = getattr(embedding, "num_embeddings", None)
    if size is not None and (largest := int(input_ids.max())) >= size:
        raise ValueError(
            f"the batch has token id {largest}, but the vocabulary of {type(module).__name__} has {size} ids "
            f"(0 to {size - 1}): do tokenizer and model belong together?"
        )


def backbone_of(hf_model: Any) -> nn.Module:
    """The part of a model that makes hidden states; the model itself when it has no such part."""
    return getattr(hf_model, "base_model", hf_model)


def last_hidden_state(backbone: nn.Module, layout: TokenLayout) -> Tensor:
    """The backbone's hidden states, flattened to [b * W, H] (aligned) or [T, H] (packed).

    A backbone of the user's own may return them as they are, instead of an object with `.last_hidden_state`.
    """
    outputs = run_model(backbone, layout)
    return (outputs if isinstance(outputs, Tensor) else outputs.last_hidden_state).flatten(0, 1)


def logits_of(outputs: Any) -> Tensor:
    """Logits from whatever a language model returns: a tensor, or an object with `.logits`."""
    return outputs if isinstance(outputs, Tensor) else outputs.logits
