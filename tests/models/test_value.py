from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.conftest import MODEL_FAMILIES, build_ragged_batch
from verl.config import ModelConfig
from verl.models.value import ValueModel, apply_head

BATCH = build_ragged_batch()


def with_random_head(model: ValueModel) -> ValueModel:
    torch.manual_seed(0)
    torch.nn.init.normal_(model.value_head.weight)
    torch.nn.init.constant_(model.value_head.bias, 0.25)
    return model


def weights_by_hf_name(model: ValueModel) -> dict[str, Tensor]:
    return {model.hf_name(name): tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_values_are_read_before_each_response_token(
    family: str, tiny_model_factory: Callable[..., PreTrainedModel]
) -> None:
    backbone = tiny_model_factory(family).base_model
    critic = with_random_head(ValueModel(backbone))
    expected = torch.zeros(BATCH["response_mask"].shape)
    for i in range(len(BATCH)):
        ids = BATCH["input_ids"][i][BATCH["attention_mask"][i].bool()]
        n = int(BATCH["response_mask"][i].sum())
        hidden = backbone(ids[None]).last_hidden_state[0]
        expected[i, :n] = (hidden @ critic.value_head.weight[0] + 0.25)[-n - 1 : -1]
    for remove_padding in [False, True] if critic.supports_packing else [False]:
        values = critic(BATCH, remove_padding=remove_padding)["values"]
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)


def test_a_new_critic_says_zero_and_its_head_can_learn(tiny_model_dir: Path) -> None:
    critic = ValueModel.load(ModelConfig(path=str(tiny_model_dir)), torch.float32)
    values = critic(BATCH)["values"]
    assert values.abs().sum() == 0
    (values - BATCH["response_mask"]).square().sum().backward()
    assert critic.value_head.weight.grad is not None and critic.value_head.weight.grad.abs().sum() > 0


def test_saved_and_loaded_it_is_the_same(tiny_model_dir: Path, tmp_path: Path) -> None:
    critic = with_random_head(ValueModel.load(ModelConfig(path=str(tiny_model_dir)), torch.float32))
    critic.save_pretrained(tmp_path / "critic", weights_by_hf_name(critic))
    again = ValueModel.load(ModelConfig(path=str(tmp_path / "critic")), torch.float32)
    assert torch.equal(again(BATCH)["values"], critic(BATCH)["values"])


def test_a_folder_may_be_given_from_home(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    critic = with_random_head(ValueModel.load(ModelConfig(path=str(tiny_model_dir)), torch.float32))
    critic.save_pretrained(tmp_path / "critic", weights_by_hf_name(critic))
    monkeypatch.setenv("HOME", str(tmp_path))
    loaded = ValueModel.load(ModelConfig(path="~/critic"), torch.float32)
    assert torch.equal(loaded.value_head.weight, critic.value_head.weight)


def test_a_head_computes_in_fp32_whatever_its_weights_are() -> None:
    for bias in (False, True):
        head = torch.nn.Linear(2, 1, bias=bias, dtype=torch.bfloat16)
        for parameter in head.parameters():
            torch.nn.init.ones_(parameter)
        # bf16 knows 256 and 258, and nothing between.
        assert apply_head(head, torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16)).tolist() == [257.0 + bias]


def test_a_head_of_another_size_is_an_error_that_names_the_file(tiny_model_dir: Path, tmp_path: Path) -> None:
    critic = ValueModel.load(ModelConfig(path=str(tiny_model_dir)), torch.float32)
    critic.save_pretrained(tmp_path, weights_by_hf_name(critic))
    head = {"value_head.weight": torch.zeros(1, 5), "value_head.bias": torch.zeros(1)}
    save_file(head, tmp_path / "value_head.safetensors")
    with pytest.raises(ValueError, match="value_head.safetensors holds .*but this model's value head needs"):
        ValueModel.load(ModelConfig(path=str(tmp_path)), torch.float32)
