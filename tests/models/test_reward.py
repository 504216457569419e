from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel

from tests.conftest import tiny_config
from tests.models.test_value import weights_by_hf_name, with_random_head
from verl.config import ModelConfig
from verl.models.reward import RewardScorer
from verl.models.value import ValueModel

PAD = 0  # the models' pad id, which texts below also end in


def tiny_classifier(family: str, num_labels: int = 1) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(tiny_config(family, num_labels=num_labels)).eval()


def rows(*texts: list[int], left: bool, width: int = 6) -> TensorDict:
    """Texts padded with 5, an ordinary id, so that only the attention mask tells what is padding."""
    ids, mask = [], []
    for text in texts:
        padding = width - len(text)
        ids.append([5] * padding + text if left else text + [5] * padding)
        mask.append([0] * padding + [1] * len(text) if left else [1] * len(text) + [0] * padding)
    return TensorDict({"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}, batch_size=len(texts))


class ReadsItsInput(nn.Module):
    """A classifier whose per-token score is the token id itself: the score at the last token is that token."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.score.weight)

    @property
    def base_model(self) -> nn.Module:
        return _Identity()


class _Identity(nn.Module):
    def forward(self, input_ids: Tensor) -> "_Identity":
        self.last_hidden_state = input_ids[..., None].float()
        return self


@pytest.mark.parametrize(
    ("scores", "mask"), [([1, 2, 3, 9], [1, 1, 1, 0]), ([9, 1, 2, 3], [0, 1, 1, 1]), ([1, 2, 3, 3], [1, 1, 1, 0])]
)
def test_c3_the_score_is_at_the_last_token_of_the_mask(scores: list[int], mask: list[int]) -> None:
    batch = TensorDict({"input_ids": torch.tensor([scores]), "attention_mask": torch.tensor([mask])}, batch_size=1)
    scorer = RewardScorer(ReadsItsInput())
    assert scorer(batch)["scores"].tolist() == [3.0]
    assert scorer(torch.cat([batch, batch]))["scores"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "opt"])
@pytest.mark.parametrize("left", [True, False])
def test_c3_a_text_that_ends_in_the_pad_token_is_scored_there(family: str, left: bool) -> None:
    model = tiny_classifier(family)
    scorer = RewardScorer(model)
    texts = [[7, 8, 9, PAD], [7, 8], [11, 12, 13, 14, 15, 16]]
    together = scorer(rows(*texts, left=left))["scores"]
    for text, score in zip(texts, together, strict=True):
        hidden = model.base_model(torch.tensor([text])).last_hidden_state[0, -1]
        assert score.item() == pytest.approx(model.score(hidden).item(), abs=1e-5)
        assert scorer(rows(text, left=left))["scores"].item() == pytest.approx(score.item(), abs=1e-5)


def test_an_encoder_keeps_its_own_way_of_scoring() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=128, num_labels=1, **sizes)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    scores = RewardScorer(model)(rows([7, 8, 9], [7, 8, 9, 10, 11], left=True))["scores"]
    alone = [model(torch.tensor([text])).logits.item() for text in ([7, 8, 9], [7, 8, 9, 10, 11])]
    assert scores.tolist() == pytest.approx(alone, abs=1e-5)


def test_several_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="gives one score, but LlamaForSequenceClassification has num_labels=3"):
        RewardScorer(tiny_classifier("llama", num_labels=3))


def test_loads_a_classifier_or_a_critic(tiny_model_dir: Path, tmp_path: Path) -> None:
    batch = rows([7, 8, 9], [7, 8], left=True)
    classifier = tiny_classifier("llama")
    classifier.save_pretrained(tmp_path / "classifier")
    loaded = RewardScorer.load(ModelConfig(path=str(tmp_path / "classifier")), torch.float32)
    assert torch.equal(loaded(batch)["scores"], RewardScorer(classifier)(batch)["scores"])

    critic = with_random_head(ValueModel.load(ModelConfig(path=str(tiny_model_dir)), torch.float32))
    critic.save_pretrained(tmp_path / "critic", weights_by_hf_name(critic))
    loaded = RewardScorer.load(ModelConfig(path=str(tmp_path / "critic")), torch.float32)
    hidden = critic.hf_model(torch.tensor([[7, 8, 9]])).last_hidden_state[0, -1]
    assert loaded(batch)["scores"][0].item() == pytest.approx(critic.value_head(hidden).item(), abs=1e-5)


def test_a_language_model_is_no_reward_model(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="lacks 1 weights of a LlamaForSequenceClassification, such as 'score.weight'"):
        RewardScorer.load(ModelConfig(path=str(tiny_model_dir)), torch.float32)
