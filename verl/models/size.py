"""How large a model is, without loading it."""

import json
from math import prod
from pathlib import Path
from typing import Any

from torch import nn

from verl.models.loading import is_hub_id


def parameter_count(model: str | nn.Module | None) -> int | None:
    """Parameters of a module, or of the safetensors files in a local folder; None for what must be loaded to know."""
    if isinstance(model, nn.Module):
        return sum(parameter.numel() for parameter in model.parameters())
    if model is None or is_hub_id(model):
        return None
    files = sorted(Path(model).expanduser().glob("*.safetensors"))
    return sum(map(_numbers_in, files)) or None


def _numbers_in(file: Path) -> int:
    """By the file's header: its length in 8 bytes, then JSON with the shape of each tensor."""
    with file.open("rb") as stream:
        header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
