"""The small Python API: what users' articles show must work as written."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from verl.config import PPOConfig
from verl.data import PromptDataset
from verl.protocol import DataProto
from verl.trainer import Callback, PPOTrainer, RayPPOTrainer
from verl.utils import get_model_and_tokenizer

LOCAL = {"trainer": {"worker_group": "local"}, "rollout": {"max_response_length": 4}}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{a}+1="}) + "\n" for a in range(8)))
    return path


def test_a_loaded_model_and_a_lambda(
    tiny_model_dir: Path, prompts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tokenizer = get_model_and_tokenizer(
        model_name=str(tiny_model_dir), use_flash_attn=False, dtype=torch.bfloat16
    )
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    dataset = PromptDataset(data_path=str(prompts), tokenizer=tokenizer, max_prompt_len=16)
    trainer = PPOTrainer(
        actor_model=model,
        critic_model=None,
        reward_fn=lambda prompts, responses: [len(r) * 0.1 for r in responses],
        dataset=dataset,
        tokenizer=tokenizer,
        config={
            "training": {"num_epochs": 1, "batch_size": 8, "micro_batch_size_per_gpu": 2, "learning_rate": 1e-3},
            "algorithm": {"gamma": 0.99, "clip_ratio": 0.2},
            **LOCAL,
        },
        output_dir=str(tmp_path / "out"),
    )
    with caplog.at_level(logging.INFO, logger="verl.trainer"):
        metrics = trainer.train()
    assert metrics["reward/score_mean"] > 0 and metrics["critic/vf_loss"] > 0
    for line in (
        "[Step 1] Rollout: 8 prompts -> 8 responses (latency: ",
        "[Step 1] Reward: computed for 8 samples",
        "[Step 1] Advantage: GAE(lambda=1) done",
        "[Step 1] Actor update: loss=",
    ):
        assert line in caplog.text
    # The user's own model is as it was; the trained one is another, of the same dtype.
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    trained = trainer.get_model()
    assert next(trained.parameters()).dtype == torch.bfloat16
    assert any(not torch.equal(parameter, before[name]) for name, parameter in trained.named_parameters())


def test_names_and_a_dataset_given_to_train(tiny_model_dir: Path, prompts: Path, tmp_path: Path) -> None:
    trainer = PPOTrainer(
        actor_model_name=str(tiny_model_dir),
        reward_fn=lambda prompts, responses: [float(len(r)) for r in responses],
        algorithm={"name": "grpo", "gamma": 0.95},
        config={
            "training": {"batch_size": 4, "num_steps": 1},
            "rollout": {"n": 2, "max_response_length": 4},
            "trainer": {"worker_group": "local"},
        },
        output_dir=str(tmp_path / "out"),
    )
    assert trainer.config.algorithm.gamma == 0.95 and trainer.config.algorithm.adv_estimator == "grpo"
    dataset = PromptDataset(["1+1="] * 4, trainer_tokenizer(tiny_model_dir), 16)
    metrics = trainer.train(dataset=dataset)
    assert "critic/vf_loss" not in metrics and "actor/kl_loss" in metrics


def trainer_tokenizer(folder: Path) -> Any:
    return get_model_and_tokenizer(str(folder), dtype=torch.float32)[1]


class StopAtOnce(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_begin(self, trainer: RayPPOTrainer) -> None:
        self.seen.append("begin")

    def on_step_end(self, trainer: RayPPOTrainer, step: int, batch: DataProto, metrics: dict[str, float]) -> None:
        self.seen.append((step, len(batch), "advantages" in batch.batch.keys()))  # noqa: SIM118
        metrics["mine/figure"] = 7.0
        trainer.should_stop = True

    def on_save(self, trainer: RayPPOTrainer, step: int, folder: Path) -> None:
        self.seen.append(folder.name)

    def on_train_end(self, trainer: RayPPOTrainer, metrics: dict[str, float]) -> None:
        self.seen.append(metrics["mine/figure"])


def test_callbacks_see_the_batch_and_can_stop(tiny_model_dir: Path, prompts: Path, tmp_path: Path) -> None:
    callback = StopAtOnce()
    trainer = PPOTrainer(
        actor_model=str(tiny_model_dir),
        reward_fn=lambda prompts, responses: [float(len(r)) for r in responses],
        config={
            "training": {"batch_size": 4, "num_steps": 5},
            "rollout": {"max_response_length": 4},
            "trainer": {"worker_group": "local", "save_freq": 0},
        },
        callbacks=[callback],
        output_dir=str(tmp_path / "out"),
    )
    trainer.train(dataset=PromptDataset(str(prompts), trainer_tokenizer(tiny_model_dir), 16))
    assert callback.seen == ["begin", (1, 4, True), "global_step_1", 7.0]
    logged = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert len(logged) == 1 and json.loads(logged[0])["mine/figure"] == 7.0


def test_what_is_missing_or_given_twice(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="actor_model and actor_model_name are both given"):
        PPOTrainer(actor_model=str(tiny_model_dir), actor_model_name=str(tiny_model_dir))
    with pytest.raises(ValueError, match=r"unknown key training.batchsize \(settings\)"):
        PPOTrainer(actor_model=str(tiny_model_dir), config={"training": {"batchsize": 8}})
    with pytest.raises(ValueError, match="there is nothing to train on"):
        PPOTrainer(actor_model=str(tiny_model_dir)).train()
    with pytest.raises(RuntimeError, match="call train"):
        PPOTrainer(actor_model=str(tiny_model_dir)).get_model()


def test_names_in_the_place_of_lists_and_sections(tiny_model_dir: Path) -> None:
    trainer = PPOTrainer(
        actor_model=str(tiny_model_dir), algorithm="grpo", logger="console", config={"rollout": {"n": 2}}
    )
    assert trainer.config.algorithm.adv_estimator == "grpo" and trainer.config.trainer.logger == ["console"]
    given = PPOConfig()
    given.trainer.logger = ["tensorboard"]
    assert PPOTrainer(actor_model=str(tiny_model_dir), config=given).config.trainer.logger == ["tensorboard"]


def test_a_path_without_data_sources_and_a_validation_set(tiny_model_dir: Path, prompts: Path, tmp_path: Path) -> None:
    """A reward function of texts reads nothing but the prompt."""
    trainer = PPOTrainer(
        actor_model=str(tiny_model_dir),
        reward_fn=lambda prompts, responses: [1.0] * len(responses),
        dataset=prompts,
        val_dataset=PromptDataset(str(prompts), trainer_tokenizer(tiny_model_dir), 16),
        config={
            "training": {"batch_size": 4, "num_steps": 1},
            "rollout": {"max_response_length": 4},
            "data": {"max_prompt_length": 16},
            "trainer": {"worker_group": "local", "test_freq": 0},
        },
        output_dir=str(tmp_path / "out"),
    )
    assert trainer.train()["val/all/reward/mean@1"] == 1.0


class Items:
    """A data set of one's own: eight times the same item."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Any:
        return self.item


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("1+1=", "input_ids, attention_mask, position_ids, but is a str: '1.1='"),
        ({"prompt": "1+1="}, "but is the columns prompt.*PromptDataset"),
        ({"input_ids": torch.ones(4), "attention_mask": torch.ones(4)}, "but is the columns input_ids, attention_mask"),
        ({"values": 3}, "have a column 'values', the name of one that the run makes itself"),
        ({"entropy": 3}, "have a column 'entropy'"),
        ({}, "training data have no column data_source, reward_model, which the reward function reads"),
    ],
)
def test_data_that_would_fail_in_the_first_step(tiny_model_dir: Path, tmp_path: Path, item: Any, message: str) -> None:
    def row_reward(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
        return 1.0

    if isinstance(item, dict) and not {"prompt", "input_ids"} & set(item):
        item = {**item, **dict.fromkeys(("input_ids", "attention_mask", "position_ids"), torch.ones(4).long())}
    trainer = PPOTrainer(
        actor_model=str(tiny_model_dir),
        reward_fn=(lambda prompts, responses: [1.0] * len(responses)) if "column '" in message else row_reward,
        dataset=Items(item),
        config={"training": {"batch_size": 4}, "data": {"max_prompt_length": 16}, **LOCAL},
        output_dir=str(tmp_path / "out"),
    )
    with pytest.raises(ValueError, match=message):
        trainer.train()
