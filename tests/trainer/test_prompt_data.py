"""Runs on a PromptDataset: prompts as wide as they are, batches of tokens, and streams."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl.data import PromptDataset
from verl.protocol import DataProto
from verl.trainer import Callback, PPOTrainer, RayPPOTrainer

PROMPTS = ["x" * (1 + number * 7 % 20) for number in range(40)]


class Shapes(Callback):
    """Notes the rows and columns of each step's batch, and the prompts in it."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.prompts: list[list[int]] = []

    def on_step_end(self, trainer: RayPPOTrainer, step: int, batch: DataProto, metrics: dict[str, float]) -> None:
        rows, columns = batch.batch["input_ids"].shape
        self.shapes.append((rows, columns))
        self.prompts.append(batch.non_tensor_batch["index"].tolist())


def vowels(prompts: list[str], responses: list[str]) -> list[float]:
    return [float(sum(letter in "aeiou" for letter in text)) for text in responses]


@pytest.fixture
def train(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., tuple[Shapes, dict[str, float]]]:
    """`train(dataset, section={...})` -> what each of 2 steps saw, and the final metrics. 2 responses to a prompt."""

    def run(dataset: Any, **sections: Any) -> tuple[Shapes, dict[str, float]]:
        seen = Shapes()
        config: dict[str, Any] = {
            "training": {"batch_size": 4, "num_steps": 2, "mini_batch_size": 2, "micro_batch_size_per_gpu": 4},
            "rollout": {"name": "hf", "n": 2, "max_response_length": 4},
            "trainer": {"worker_group": "local"},
            **sections,
        }
        trainer = PPOTrainer(
            str(tiny_model_dir), reward_fn=vowels, config=config, callbacks=[seen], output_dir=str(tmp_path / "out")
        )
        return seen, trainer.train(dataset)

    return run


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_batches_of_tokens(train: Any, tiny_tokenizer: Any, kind: str) -> None:
    """Any number of rows a step, whatever the train batch size says; mini-batches are cut from what there is."""
    data = PROMPTS if kind == "list" else lambda: iter(PROMPTS)
    dataset = PromptDataset(data, tiny_tokenizer, 24, dynamic_batching=True, max_tokens_per_batch=100)
    seen, metrics = train(dataset)
    rows, columns = zip(*seen.shapes, strict=True)
    assert 4 * 2 not in rows
    for row_count, column_count, prompts in zip(rows, columns, seen.prompts, strict=True):
        longest = max(len(PROMPTS[index]) for index in prompts)
        assert column_count == longest + 4  # no wider than needed
        assert row_count // 2 * longest <= 100  # 2 responses to each prompt
    assert metrics["actor/skipped_steps"] == 0


def test_a_stream_to_validate_on(tiny_model_dir: Path, tiny_tokenizer: Any, tmp_path: Path) -> None:
    """Its rows are all there, also those of a last batch that is not full."""

    def validate(**data: Any) -> tuple[int, dict[str, float]]:
        asked = []

        def score(prompts: list[str], responses: list[str]) -> list[float]:
            asked.extend(prompts)
            return [1.0] * len(prompts)

        trainer = PPOTrainer(
            str(tiny_model_dir),
            reward_fn=score,
            val_dataset=PromptDataset(lambda: iter(["a", "bb", "c", "dddd", "e"]), tiny_tokenizer, 8),
            config={
                "rollout": {"name": "hf", "max_response_length": 2},
                "trainer": {"worker_group": "local", "val_only": True},
                "reward": {"num_workers": 0},
                "data": data,
            },
            output_dir=str(tmp_path / "out"),
        )
        metrics = trainer.train(PromptDataset(["a"] * 4, tiny_tokenizer, 8))
        return len(asked), metrics

    assert validate(train_batch_size=4, val_batch_size=2) == (5, {"val/all/reward/mean@1": 1.0})
    with pytest.raises(ValueError, match="validation data are a stream of unknown length: set data.val_batch_size"):
        validate(train_batch_size=4)


def test_only_informative_prompts_of_batches_of_several_widths(train: Any, tiny_tokenizer: Any) -> None:
    filters = {"filter_groups": {"enable": True, "max_num_gen_batches": 0}}
    seen, metrics = train(PromptDataset(PROMPTS, tiny_tokenizer, 24), algorithm=filters)
    assert [rows for rows, _ in seen.shapes] == [8, 8]
    assert metrics["filter_groups/tried_prompts"] > metrics["filter_groups/kept_prompts"] >= 4
