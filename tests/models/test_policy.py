from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.conftest import MODEL_FAMILIES, build_ragged_batch
from verl.models.policy import PolicyModel

Factory = Callable[..., PreTrainedModel]
BATCH = build_ragged_batch()


def one_by_one(logits_of: Callable[[Tensor], Tensor], batch: TensorDict, temperature: float = 1.0) -> dict[str, Tensor]:
    """Log-probs and entropies by the definition: each row alone, without padding."""
    shape = batch["response_mask"].shape
    outputs = {"log_probs": torch.zeros(shape), "entropy": torch.zeros(shape)}
    for i in range(len(batch)):
        ids = batch["input_ids"][i][batch["attention_mask"][i].bool()]
        n = int(batch["response_mask"][i].sum())
        log_softmax = (logits_of(ids[None])[0, -n - 1 : -1] / temperature).log_softmax(-1)
        outputs["log_probs"][i, :n] = log_softmax.gather(1, ids[-n:, None])[:, 0]
        outputs["entropy"][i, :n] = -(log_softmax.exp() * log_softmax).sum(-1)
    return outputs


@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_b12_f1_padded_packed_and_one_by_one_agree(family: str, tiny_model_factory: Factory) -> None:
    model = tiny_model_factory(family)
    policy = PolicyModel(model)
    expected = one_by_one(lambda ids: model(ids).logits, BATCH, temperature=0.7)
    layouts = [False, True] if policy.supports_packing else [False]
    for remove_padding in layouts:
        outputs = policy(BATCH, temperature=0.7, compute_entropy=True, remove_padding=remove_padding)
        torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_these_families_can_be_packed(family: str, tiny_model_factory: Factory) -> None:
    assert PolicyModel(tiny_model_factory(family)).supports_packing


def test_a_model_that_lets_packed_rows_see_each_other_is_refused(tiny_model_factory: Factory) -> None:
    policy = PolicyModel(tiny_model_factory("opt"))
    assert not policy.supports_packing
    with pytest.raises(ValueError, match="OPTForCausalLM does not keep packed rows apart.*use_remove_padding=False"):
        policy(BATCH, remove_padding=True)


@pytest.mark.parametrize("remove_padding", [False, True])
def test_garbage_under_the_masks_and_more_padding_change_nothing(
    remove_padding: bool, tiny_model_factory: Factory
) -> None:
    policy = PolicyModel(tiny_model_factory())
    wider = TensorDict(
        {
            "input_ids": nn.functional.pad(BATCH["input_ids"], (3, 2), value=7),
            "attention_mask": nn.functional.pad(BATCH["attention_mask"], (3, 2)),
            "response_mask": nn.functional.pad(BATCH["response_mask"], (0, 2)),
        },
        batch_size=BATCH.batch_size,
    )
    wider["input_ids"][wider["attention_mask"] == 0] = 99
    outputs = policy(BATCH, compute_entropy=True, remove_padding=remove_padding)
    same = policy(wider, compute_entropy=True, remove_padding=remove_padding)
    for name, values in outputs.items():
        torch.testing.assert_close(same[name][:, :4], values, atol=1e-6, rtol=0)
        assert same[name][:, 4:].abs().sum() == 0
        assert values[BATCH["response_mask"] == 0].abs().sum() == 0


def test_a_token_between_sampled_ones_may_be_masked(tiny_model_factory: Factory) -> None:
    """As in multi-turn rows, where a tool's answer stands inside the response: seen, but not trained."""
    policy, batch = PolicyModel(tiny_model_factory()), BATCH.clone()
    row = int(batch["response_mask"].sum(1).argmax())
    batch["response_mask"][row, 1] = 0
    before, after = policy(BATCH)["log_probs"], policy(batch)["log_probs"]
    assert after[row, 1] == 0
    after[row, 1] = before[row, 1]
    torch.testing.assert_close(after, before)


def test_a_batch_without_response_tokens_has_zero_outputs_and_gradients(tiny_model_factory: Factory) -> None:
    policy, batch = PolicyModel(tiny_model_factory()), BATCH.clone()
    batch["response_mask"].zero_()
    outputs = policy(batch, compute_entropy=True)
    sum(values.sum() for values in outputs.values()).backward()
    assert all(values.abs().sum() == 0 for values in outputs.values())
    assert all(p.grad is not None and p.grad.abs().sum() == 0 for p in policy.parameters())


def test_soft_capped_logits_come_from_the_models_own_forward() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.2,
        final_logit_softcapping=0.5,
        attn_implementation="eager",
    )
    model = Gemma2ForCausalLM(config).eval()
    policy = PolicyModel(model)
    assert policy.output_layer is None
    outputs = policy(BATCH, compute_entropy=True)
    torch.testing.assert_close(outputs, one_by_one(lambda ids: model(ids).logits, BATCH), atol=1e-5, rtol=1e-5)


class RunningMean(nn.Module):
    """A causal "language model" of the user's own: logits from the mean embedding of the tokens so far."""

    def __init__(self, wrapped: bool = False) -> None:
        super().__init__()
        self.embedding, self.head, self.wrapped = nn.Embedding(128, 8), nn.Linear(8, 128), wrapped
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Tensor) -> Tensor | SimpleNamespace:
        count = torch.arange(1, tokens.shape[1] + 1)[:, None]
        logits = self.head(self.dropout(self.embedding(tokens).cumsum(1) / count))
        return SimpleNamespace(logits=logits) if self.wrapped else logits


@pytest.mark.parametrize("wrapped", [False, True])
def test_any_module_that_gives_logits_is_a_policy(wrapped: bool) -> None:
    torch.manual_seed(0)
    module = RunningMean(wrapped)
    policy = PolicyModel(module)
    expected = one_by_one(lambda ids: module(ids).logits if wrapped else module(ids), BATCH)
    torch.testing.assert_close(policy(BATCH, compute_entropy=True), expected, atol=1e-5, rtol=1e-5)
    assert policy.blocks() == [] and not policy.supports_packing
    assert {policy.hf_name(name) for name, _ in policy.named_parameters()} == {n for n, _ in module.named_parameters()}


def test_dropout_stays_off_while_training(tiny_model_factory: Factory) -> None:
    policy = PolicyModel(tiny_model_factory("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5))
    policy.train()
    assert torch.equal(policy(BATCH)["log_probs"], policy(BATCH)["log_probs"])


def test_blocks_are_the_transformer_layers(tiny_model_factory: Factory) -> None:
    model = tiny_model_factory("llama", num_hidden_layers=3)
    assert PolicyModel(model).blocks() == list(model.model.layers)


def test_names_are_those_of_the_model_itself(tiny_model_factory: Factory) -> None:
    policy = PolicyModel(tiny_model_factory("llama"))
    assert policy.hf_name("hf_model.model.norm.weight") == "model.norm.weight"


def test_a_token_of_another_vocabulary_is_named(tiny_model_factory: Factory) -> None:
    model = PolicyModel(tiny_model_factory("llama", vocab_size=64))
    batch = BATCH.clone()
    batch["input_ids"][0, -1] = 999  # padding, which is not looked at
    batch["attention_mask"][0, -1] = 0
    batch["response_mask"][0, -1] = 0
    batch["input_ids"] = batch["input_ids"].where(batch["attention_mask"].bool(), 999).clamp_max(999)
    largest = int(batch["input_ids"][batch["attention_mask"].bool()].max())
    with pytest.raises(ValueError, match=f"token id {largest}, but the vocabulary of LlamaModel has 64 ids"):
        model(batch)
    PolicyModel(tiny_model_factory("llama", vocab_size=largest + 1))(batch)
