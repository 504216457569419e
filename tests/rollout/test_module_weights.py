"""Refilling a model's weights by name."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from verl.rollout.module_weights import ModuleWeights

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def copies(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def unchanged(model: torch.nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("family", ("llama", "qwen2", "qwen3", "gpt2", "opt"))
def test_a_stream_of_parameters_fills_the_model_in_place(tiny_model_factory, family: str) -> None:
    source, model = tiny_model_factory(family, seed=1), tiny_model_factory(family, seed=2).to(torch.bfloat16)
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    weights = ModuleWeights(model)
    weights.load(source.named_parameters())
    assert weights.complete
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == places[name] and tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, source.state_dict()[name].bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update({"model.embed_token.weight": w[EMBEDDING]}), f"not one .* nearest it has is '{EMBEDDING}'"),
        (lambda w: w.pop("model.norm.weight"), "1 of the rollout model's 21 weights were not given: model.norm.weight"),
        (lambda w: w.update({HEAD: w[HEAD][:5]}), rf"'{HEAD}' has shape \[5, 32\], .* has \[128, 32\]"),
    ],
)
def test_a_faulty_list_changes_nothing(tiny_model_factory, change, message: str) -> None:
    model = tiny_model_factory()
    before, new = copies(model), copies(tiny_model_factory(seed=1))
    change(new)
    weights = ModuleWeights(model)
    with pytest.raises(ValueError, match=message):
        weights.load(list(new.items()))
    assert weights.complete and unchanged(model, before)


def test_a_stream_that_fails_midway_leaves_the_model_incomplete_until_a_whole_one(tiny_model_factory) -> None:
    model, new = tiny_model_factory(), copies(tiny_model_factory(seed=1))
    weights = ModuleWeights(model)

    def faulty() -> Iterator[tuple[str, Tensor]]:
        yield EMBEDDING, new[EMBEDDING]
        yield "nonsense", new[HEAD]

    with pytest.raises(ValueError, match="'nonsense'"):
        weights.load(faulty())
    assert not weights.complete
    with pytest.raises(ValueError, match="were not given"):
        weights.load(iter([(EMBEDDING, new[EMBEDDING])]))
    assert not weights.complete
    weights.load(iter(new.items()))
    assert weights.complete and unchanged(model, new)


def test_tied_weights_take_either_name_or_both_but_no_contradiction(tiny_model_factory) -> None:
    model = tiny_model_factory(tie_word_embeddings=True)
    weights = ModuleWeights(model)
    new = copies(tiny_model_factory(seed=1, tie_word_embeddings=True))
    assert EMBEDDING in new and HEAD in new
    for left_out in (HEAD, EMBEDDING, None):
        weights.load([(name, tensor) for name, tensor in new.items() if name != left_out])
        assert weights.complete and unchanged(model, new)
    with pytest.raises(ValueError, match="'model.embed_tokens.weight' and 'lm_head.weight' differ, but are one tied"):
        weights.load(iter({**new, HEAD: new[HEAD] + 1}.items()))
    assert not weights.complete


def test_freed_memory_comes_back_with_the_weights(tiny_model_factory) -> None:
    model = tiny_model_factory(tie_word_embeddings=True)
    before = copies(model)
    weights = ModuleWeights(model)
    weights.free()
    weights.free()
    assert sum(parameter.untyped_storage().nbytes() for parameter in model.parameters()) == 0
    weights.allocate()
    assert not weights.complete, "memory alone holds no values"
    weights.load(iter(before.items()))
    assert weights.complete and unchanged(model, before)
    assert model.lm_head.weight is model.get_input_embeddings().weight
