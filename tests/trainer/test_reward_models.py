"""A learned reward in the small Python API: the snippet of users' articles, with a DeBERTa of every kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from verl.data import PromptDataset
from verl.protocol import DataProto
from verl.trainer import Callback, PPOTrainer, RayPPOTrainer

PROMPTS = ["one plus two", "why", "12+3=", "is it so, or is it not"]
VERSIONS: dict[str, dict[str, Any]] = {
    "v2": {"position_biased_input": True, "type_vocab_size": 2, "pos_att_type": ["p2c", "c2p"]},
    "v3": {
        "position_biased_input": False, "type_vocab_size": 0, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
        "norm_rel_ebd": "layer_norm", "position_buckets": 8,
    },
}  # fmt: skip


def trained_tokenizer() -> Any:
    """Unigram pieces, as DeBERTa has them."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import DebertaV2Tokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    characters = [chr(code) for code in range(33, 127)]
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=special, unk_token="[UNK]", initial_alphabet=characters, show_progress=False
    )
    trained.train_from_iterator([*PROMPTS, "three is the sum", "it is so"] * 20, trainer)
    pieces = [tuple(piece) for piece in json.loads(trained.to_str())["model"]["vocab"]]
    return DebertaV2Tokenizer(vocab=pieces)


@pytest.fixture(scope="module")
def deberta(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random DeBERTa with one label, on disk with its tokenizer."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    folder = tmp_path_factory.mktemp("deberta")
    tokenizer = trained_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = DebertaV2Config(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=64, num_labels=1, relative_attention=True,
            initializer_range=0.5, **VERSIONS[request.param],
        )  # fmt: skip
        DebertaV2ForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Scored(Callback):
    """Notes what each step's responses were and how they were scored."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.rows: list[tuple[str, str, float]] = []

    def on_step_end(self, trainer: RayPPOTrainer, step: int, batch: DataProto, metrics: dict[str, float]) -> None:
        tensors = batch.batch
        scores, lengths = tensors["token_level_scores"], tensors["response_mask"].sum(-1)
        for row, (length, prompt) in enumerate(zip(lengths, batch.non_tensor_batch["raw_prompt"], strict=True)):
            answer = self.tokenizer.decode(tensors["responses"][row, :length], skip_special_tokens=True)
            assert scores[row].count_nonzero() == 1
            self.rows.append((prompt, answer, float(scores[row, length - 1])))


@pytest.fixture
def expected(deberta: Path) -> Callable[[str, str], float]:
    """What transformers makes of a prompt and a response."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(deberta),
        AutoTokenizer.from_pretrained(deberta),
    )

    def score(prompt: str, answer: str) -> float:
        with torch.no_grad():
            inputs = tokenizer(prompt, answer, return_tensors="pt")
            return float(model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits)

    return score


LAYOUTS: dict[str, dict[str, Any]] = {
    "in this process": {"config": {"trainer": {"worker_group": "local"}}},
    "in a process of its own on the CPU": {"device_map": {"reward_model": {"type": "cpu"}}},
}


@pytest.mark.parametrize(
    ("deberta", "layout"),
    [*((version, "in this process") for version in VERSIONS), ("v3", "in a process of its own on the CPU")],
    indirect=["deberta"],
)
def test_a_deberta_scores_what_a_policy_says(
    deberta: Path,
    expected: Callable[[str, str], float],
    tiny_model_dir: Path,
    tiny_tokenizer: Any,
    tmp_path: Path,
    layout: str,
) -> None:
    seen = Scored(tiny_tokenizer)
    where = dict(LAYOUTS[layout])
    trainer = PPOTrainer(
        actor_model_name=str(tiny_model_dir),
        reward_model_name=str(deberta),
        config={
            "training": {"batch_size": 4, "num_steps": 2},
            "rollout": {"name": "hf", "max_response_length": 6},
            **where.pop("config", {}),
        },
        callbacks=[seen],
        output_dir=str(tmp_path / "out"),
        **where,
    )
    metrics = trainer.train(dataset=PromptDataset(PROMPTS, tiny_tokenizer, 32))
    assert len(seen.rows) == 8
    for prompt, answer, score in seen.rows:
        assert score == pytest.approx(expected(prompt, answer), abs=1e-4)
    assert metrics["reward/rm_mean"] == pytest.approx(sum(score for _, _, score in seen.rows[4:]) / 4, abs=1e-4)
    assert len({round(score, 3) for _, _, score in seen.rows}) > 4


SMALL = {
    "training": {"batch_size": 4, "num_steps": 1},
    "rollout": {"name": "hf", "max_response_length": 6},
    "trainer": {"worker_group": "local"},
}


class Keep(Callback):
    """Keeps the batch of the last step."""

    def on_step_end(self, trainer: RayPPOTrainer, step: int, batch: DataProto, metrics: dict[str, float]) -> None:
        self.batch = batch


@pytest.mark.parametrize("actor_is_a_module", [True, False])
def test_a_scorer_that_is_a_module_reads_the_policys_tokens(
    tiny_model_dir: Path, tmp_path: Path, actor_is_a_module: bool
) -> None:
    from transformers import AutoModelForSequenceClassification

    from tests.conftest import tiny_config
    from verl.utils import get_model_and_tokenizer

    actor, tokenizer = get_model_and_tokenizer(str(tiny_model_dir), dtype="float32")
    scorer = AutoModelForSequenceClassification.from_config(tiny_config("llama", num_labels=1)).eval()
    torch.nn.init.constant_(scorer.score.weight, 0.5)
    seen = Keep()
    trainer = PPOTrainer(
        actor_model=actor if actor_is_a_module else str(tiny_model_dir),
        tokenizer=tokenizer,
        reward_model=scorer,
        config=SMALL,
        callbacks=[seen],
        output_dir=str(tmp_path),
    )
    trainer.train(PromptDataset(PROMPTS, tokenizer, max_prompt_len=24))
    batch = seen.batch.batch
    last = batch["attention_mask"].cumsum(-1).argmax(-1)
    hidden = scorer.model(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    expected = scorer.score(hidden[torch.arange(len(hidden)), last]).flatten()
    torch.testing.assert_close(batch["token_level_scores"].sum(-1), expected, atol=1e-4, rtol=1e-4)


def test_a_policy_that_is_a_module_brings_its_tokenizer_to_the_scorer(
    tiny_model_dir: Path, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    from tests.conftest import tiny_config
    from verl.utils import get_model_and_tokenizer

    AutoModelForSequenceClassification.from_config(tiny_config("llama", num_labels=1)).save_pretrained(tmp_path / "rm")
    tiny_tokenizer.save_pretrained(tmp_path / "rm")
    actor, tokenizer = get_model_and_tokenizer(str(tiny_model_dir), dtype="float32")
    trainer = PPOTrainer(
        actor, tokenizer=tokenizer, reward_model_name=str(tmp_path / "rm"), config=SMALL, output_dir=str(tmp_path)
    )
    assert "reward/rm_mean" in trainer.train(PromptDataset(PROMPTS, tokenizer, max_prompt_len=24))
