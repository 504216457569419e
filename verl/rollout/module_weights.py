"""The weights of a module that a rollout engine holds: refilled in place from the trainer, and given up to sleep."""

import difflib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


class ModuleWeights:
    """Fills a module's tensors by name. `complete` is false while some of them hold no or only half-updated values."""

    def __init__(self, module: nn.Module) -> None:
        # Tied weights are one tensor under several names; any of the names fills it.
        self._tensors: dict[str, Tensor] = module.state_dict(keep_vars=True)
        self._parameters = dict(module.named_parameters())
        self._freed: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self.complete = True

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy `weights` into the module: every parameter, and those buffers that are given.

        ValueError for a name the module lacks, another shape, a parameter left out, or two names of one tied weight
        with different values. A list is checked before anything changes. A stream is checked tensor by tensor, since
        holding it would take a second model; when it fails midway the module is not `complete`.
        """
        if isinstance(weights, Sequence):
            self._refuse_missing({id(self._target(name, tensor)) for name, tensor in weights})
        self.allocate()
        filled: dict[int, str] = {}
        for name, tensor in weights:
            target = self._target(name, tensor)
            if id(target) in filled:
                _refuse_untied(target, tensor, filled[id(target)], name)
                continue
            self.complete = False
            with torch.no_grad():
                target.copy_(tensor)
            filled[id(target)] = name
        self._refuse_missing(set(filled))
        self.complete = True

    def errors(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """For each weight, how far the module's own is from it (`relative_error`); NaN for an unknown name."""
        return {
            name: relative_error(self._tensors[name].detach(), tensor) if name in self._tensors else float("nan")
            for name, tensor in weights
        }

    def free(self) -> None:
        """Give the memory of all parameters back. Their values are lost; buffers stay."""
        self.complete = False
        for parameter in self._parameters.values():
            storage = parameter.untyped_storage()
            if storage.nbytes():
                self._freed[id(parameter)] = (storage, storage.nbytes())
                storage.resize_(0)

    def allocate(self) -> None:
        """Take the memory again that `free` gave back; the values must come by `load`."""
        for storage, size in self._freed.values():
            storage.resize_(size)
        self._freed.clear()

    def _target(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._tensors:
            near = difflib.get_close_matches(name, self._tensors, n=1)
            hint = f"; the nearest it has is {near[0]!r}" if near else ""
            raise ValueError(f"weight {name!r} is not one of the rollout model's{hint}")
        target = self._tensors[name]
        if target.shape != tensor.shape:
            raise ValueError(
                f"weight {name!r} has shape {list(tensor.shape)}, but the rollout model's has {list(target.shape)}"
            )
        return target

    def _refuse_missing(self, filled: set[int]) -> None:
        missing = [name for name, parameter in self._parameters.items() if id(parameter) not in filled]
        if missing:
            raise ValueError(
                f"{len(missing)} of the rollout model's {len(self._parameters)} weights were not given: "
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}"
            )


@torch.no_grad()
def relative_error(own: Tensor, given: Tensor) -> float:
    """The largest difference over the largest number of `given`, in the dtype of `own`; NaN for another shape."""
    if own.shape != given.shape:
        return float("nan")
    given = given.to(own.device, own.dtype)
    return float((own - given).abs().max() / given.abs().max().clamp_min(torch.finfo(own.dtype).tiny))


def _refuse_untied(target: Tensor, tensor: Tensor, first: str, second: str) -> None:
    if not torch.equal(target, tensor.to(device=target.device, dtype=target.dtype)):
        raise ValueError(
            f"weights {first!r} and {second!r} differ, but are one tied weight in the rollout model: "
            "build it with the trainer's configuration"
        )
