"""Looking into the model that vLLM holds: its weights, against the trainer's, and its KV cache on a CPU."""

import mmap
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from verl.rollout.module_weights import relative_error

# ---- weights ----


@torch.no_grad()
def weight_errors(
    model: nn.Module, weights: Iterable[tuple[str, Tensor]], rank: int = 0, size: int = 1
) -> dict[str, float]:
    """For each weight, given under its Hugging Face name, how far it is from what `model` computes with.

    Norms, biases and embeddings are compared number by number. vLLM fuses the matrices of linear layers, and on a CPU
    repacks them so that they cannot be read back: both sides multiply them with one random vector instead, whose
    product tells matrices apart as a checksum does. Differences are relative to the largest number; NaN is a weight
    that was not found.

    Args:
        rank, size: place of this process in its tensor-parallel group; it holds and compares its share of each matrix.
    """
    modules = dict(model.named_modules())
    fused = {
        part: (whole, list(parts))
        for whole, parts in getattr(model, "packed_modules_mapping", {}).items()
        for part in parts
    }
    heads = {id(head.weight): head for head in _output_heads(model)}
    errors = {}
    for name, weight in weights:
        path, _, kind = name.rpartition(".")
        parent, _, leaf = path.rpartition(".")
        whole, parts = fused.get(leaf, (leaf, []))
        module = modules.get(f"{parent}.{whole}" if parent else whole)
        own = getattr(module, kind, None)
        if own is None:
            errors[name] = float("nan")
            continue
        weight = weight.to(own.device, own.dtype)
        if hasattr(module, "output_size"):
            errors[name] = _linear_error(module, kind, weight, parts.index(leaf) if parts else None, rank, size)
            continue
        # A vocabulary is split over its rows and padded at its end; anything else is whole everywhere.
        share = weight if weight.shape == own.shape else weight[rank * len(own) : (rank + 1) * len(own)]
        errors[name] = relative_error(own[: len(share)], share)
        if id(own) in heads:
            vector = _probe(share, share.shape[1])
            product = _product(heads[id(own)], vector)[: len(share)]
            errors[name] = max(errors[name], relative_error(product, share @ vector))
    return errors


def pack_vocabularies_when_used(model: nn.Module) -> None:
    """Let embeddings and output layers on a CPU make the packed copy that products take when they need it first.

    vLLM 0.32 makes it whenever a layer's weight is loaded. So it holds one of the embedding, which is only looked up,
    and leaves that of an output layer that shares the embedding's weight as it was. To be dropped when vLLM packs for
    output layers alone, and anew for tied ones.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    class PackedWhenUsed(UnquantizedEmbeddingMethod):
        def process_weights_after_loading(self, layer: Any) -> None:
            layer.cpu_linear = None

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            if layer.cpu_linear is None:
                super().process_weights_after_loading(layer)
            product: Tensor = super().apply(layer, x, bias)
            return product

    for layer in _vocabularies(model):
        if type(layer.quant_method) is UnquantizedEmbeddingMethod:
            layer.quant_method = PackedWhenUsed()
    forget_packed_vocabularies(model)


def forget_packed_vocabularies(model: nn.Module) -> None:
    """Free these copies: their weights are about to change."""
    for layer in _vocabularies(model):
        layer.cpu_linear = None


def _vocabularies(model: nn.Module) -> list[Any]:
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    return [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]


def _output_heads(model: nn.Module) -> list[Any]:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return [module for module in model.modules() if isinstance(module, ParallelLMHead)]


def _probe(like: Tensor, length: int) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def _product(module: Any, vector: Tensor) -> Tensor:
    """What one of vLLM's layers makes of `vector` [inputs]: [outputs], without bias."""
    return module.quant_method.apply(module, vector.unsqueeze(0), None).squeeze(0)


def _linear_error(module: Any, kind: str, weight: Tensor, part: int | None, rank: int, size: int) -> float:
    """The error of a bias [outputs] or matrix [outputs, inputs] of one of vLLM's linear layers.

    `part` says which of the fused matrices it is; None is all of them.
    """
    if kind == "bias":
        own = module.bias.to(weight.dtype)
        return max(relative_error(own[at], share) for at, share in _shares(module, weight, part, rank, size))
    inputs = getattr(module, "input_size_per_partition", module.input_size)
    vector = _probe(weight, inputs)
    product = _product(module, vector)
    errors = []
    # Some families of models keep their matrices as [inputs, outputs], which a square one does not tell.
    for matrix in (weight, weight.t()):
        if matrix.shape[1] == module.input_size:
            columns = matrix[:, rank * inputs : (rank + 1) * inputs] if inputs < module.input_size else matrix
            shares = _shares(module, columns, part, rank, size)
            errors.append(max(relative_error(product[at], share @ vector) for at, share in shares))
    return min(errors, default=float("nan"))


def _shares(module: Any, weight: Tensor, part: int | None, rank: int, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Which of this process's outputs come from which rows of `weight`."""
    widths: list[int] = getattr(module, "output_partition_sizes", None) or [module.output_size]
    chosen = range(len(widths)) if part is None else [part]
    # The whole width of a part over its width here: 1 where every process holds all of it.
    pieces = len(weight) // sum(widths[i] for i in chosen) if part is None else len(weight) // widths[part]
    start = 0
    for i in chosen:
        offset, here = sum(widths[:i]), widths[i]
        row = start + rank * pieces // size * here
        yield slice(offset, offset + here), weight[row : row + here]
        start += pieces * here


# ---- KV cache on a CPU ----


class CPUKVCache:
    """The KV cache tensors of a model on a CPU, whose memory can be given back and taken again.

    vLLM fills it with zeros at its start, and so takes all of it at once, however few of its blocks are ever used.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = list(tensors)
        self._layouts: list[tuple[int, int, int, torch.Size, tuple[int, ...]]] = []

    def free(self) -> None:
        """Give the memory back; the values are lost. The tensors stay the same objects, since vLLM holds them."""
        for tensor in self._tensors:
            storage = tensor.untyped_storage()
            layout = (storage.data_ptr(), storage.nbytes(), int(tensor.storage_offset()), tensor.shape, tensor.stride())
            self._layouts.append(layout)
        for tensor in self._tensors:
            tensor.set_(torch.UntypedStorage())

    def restore(self) -> None:
        """Take memory again: zeros that the system hands out page by page as they are used."""
        storages: dict[int, torch.UntypedStorage] = {}
        for tensor, (address, size, offset, shape, stride) in zip(self._tensors, self._layouts, strict=True):
            if address not in storages:
                memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                storages[address] = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
            tensor.set_(storages[address], offset, shape, stride)
        self._layouts.clear()
