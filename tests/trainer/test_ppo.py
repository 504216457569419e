"""The small Python API: what users' articles show must work as written."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from verl.config import PPOConfig
from verl.config.loader import load_config
from verl.data import PromptDataset
from verl.protocol import DataProto
from verl.trainer import Callback, PPOTrainer, RayPPOTrainer
from verl.trainer.checks import checked
from verl.trainer.launch import running
from verl.trainer.roles import default_roles
from verl.trainer.short_keys import SHORT_KEYS
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
        children = psutil.Process().children()
        metrics = trainer.train()
    assert psutil.Process().children() == children, "the processes that scored are still there"
    assert metrics["reward/score_mean"] > 0 and metrics["critic/vf_loss"] > 0
    for line in (
        "[Step 0] Rollout: 8 prompts -> 8 responses (latency: ",
        "[Step 0] Reward: computed for 8 samples",
        "[Step 0] Advantage: GAE(lambda=1) done",
        "[Step 0] Actor update: loss=",
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
    with pytest.raises(ValueError, match=r"unknown key training.batchsize .* did you mean training.batch_size"):
        PPOTrainer(actor_model=str(tiny_model_dir), config={"training": {"batchsize": 8}})
    with pytest.raises(ValueError, match="there is no policy: give actor_model="):
        PPOTrainer(algorithm={"name": "grpo"}, config={"rollout": {"n": 2}}).train(["prompts.jsonl"])
    with pytest.raises(ValueError, match="there is nothing to train on"):
        PPOTrainer(actor_model=str(tiny_model_dir)).train()
    with pytest.raises(RuntimeError, match="call train"):
        PPOTrainer(actor_model=tiny_model_dir).get_model()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"actor_model": 5}, "actor_model is a int: expected a loaded module, a folder or a hub id"),
        ({"critic_model": ["m"]}, "critic_model is a list"),
        ({"tokenizer": "gpt2"}, "tokenizer='gpt2' is a name: give a loaded one"),
        ({"callbacks": Callback()}, "expected a list of verl.trainer.Callback objects"),
        (
            {"callbacks": [Callback(), print]},
            r"callbacks\[1\] is <built-in function print>, which is no Callback object",
        ),
        ({"callbacks": [Callback]}, r"callbacks\[0\] .* make one of the class"),
        ({"tokenizer": 5}, "tokenizer is a int: expected one of transformers"),
        ({"logger": 5}, "logger is 5: expected str or list or tuple"),
        ({"algorithm": True}, "algorithm is True: expected Mapping or str"),
        ({"config": "run.yaml"}, "config is 'run.yaml': expected Mapping or PPOConfig"),
        ({"device_map": ["actor"]}, r"device_map is \['actor'\]: expected Mapping or str or Path"),
        ({"ray_address": 5}, "ray_address is 5: expected str"),
        ({"dataset": 5}, "dataset is 5: expected a path, or a data set such as verl.data.PromptDataset"),
        ({"dataset": {"prompt": "a"}}, "dataset is {.*}: expected a path"),
        ({"val_dataset": PromptDataset}, "val_dataset is <class .*>: expected a path"),
    ],
)
def test_objects_of_another_kind(tiny_model_dir: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        PPOTrainer(**{"actor_model": str(tiny_model_dir), **given})


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


def test_three_ways_to_start_a_run_give_the_same_figures(
    tiny_run: Callable[..., list[str]], sums_file: Path, tmp_path: Path
) -> None:
    def overrides(name: str) -> list[str]:
        return tiny_run("trainer.test_freq=0", f"trainer.default_local_dir={tmp_path / name}")

    def figures(name: str) -> list[dict[str, float]]:
        records = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in record.items() if not k.startswith(("timing/", "perf/"))} for record in records]

    command = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides("command_line")]
    subprocess.run(command, check=True, capture_output=True, timeout=200)

    config = checked(load_config(overrides("ray_ppo")))
    roles = default_roles(config)
    tokenizer = trainer_tokenizer(Path(str(config.actor_rollout_ref.model.path)))
    trainer = RayPPOTrainer(config, tokenizer, roles)
    with running(trainer):
        trainer.fit()

    config = load_config(overrides("ppo"))
    model = config.actor_rollout_ref.model.path
    PPOTrainer(actor_model_name=model, config=config, dataset=str(sums_file), val_dataset=str(sums_file)).train()

    expected = figures("command_line")
    assert [record["step"] for record in expected] == [1, 2] and "val/arithmetic/reward/mean@1" in expected[-1]
    for name in ("ray_ppo", "ppo"):
        for record, found in zip(expected, figures(name), strict=True):
            assert found == pytest.approx(record, abs=1e-6)


def test_a_device_map_with_actor_and_rollout_apart(tiny_model_dir: Path, prompts: Path, tmp_path: Path) -> None:
    device_map = tmp_path / "device_map.yaml"
    device_map.write_text("actor: {type: fsdp, devices: ['cpu:0']}\nrollout: {type: hf, devices: ['cpu:1']}\n")
    model, tokenizer = get_model_and_tokenizer(str(tiny_model_dir), dtype=torch.float32)

    def train(name: str, **layout: Any) -> tuple[PPOTrainer, dict[str, float]]:
        trainer = PPOTrainer(
            actor_model=model,
            reward_fn=lambda prompts, responses: [len(r) * 0.1 for r in responses],
            dataset=PromptDataset(str(prompts), tokenizer, max_prompt_len=16),
            config={
                "training": {"num_steps": 2, "batch_size": 4, "learning_rate": 1e-3},
                "rollout": {"max_response_length": 4},
                **layout.pop("config", {}),
            },
            output_dir=str(tmp_path / name),
            **layout,
        )
        return trainer, trainer.train()

    trainer, mapped = train("mapped", device_map=str(device_map))
    assert trainer.trainer is not None
    assert trainer.trainer.resource_pool_manager.mapping == {
        "actor": "actor+critic",
        "critic": "actor+critic",
        "rollout": "rollout",
    }
    _, local = train("local", config={"trainer": {"worker_group": "local"}})
    for name in ("reward/score_mean", "actor/loss", "critic/vf_loss", "actor/grad_norm"):
        assert mapped[name] == pytest.approx(local[name], rel=1e-4, abs=1e-5)


def test_the_reward_section_holds_for_a_given_function(tiny_model_dir: Path, prompts: Path, tmp_path: Path) -> None:
    """Two functions by name, one of which returns nothing for some rows, that are then excluded."""

    def length(prompts: list[str], responses: list[str]) -> list[float | None]:
        return [None if prompt.startswith("3") else float(len(r)) for prompt, r in zip(prompts, responses, strict=True)]

    trainer = PPOTrainer(
        actor_model=str(tiny_model_dir),
        reward_fn={"length": length, "one": lambda prompts, responses: [1.0] * len(prompts)},
        config={"training": {"batch_size": 8}, "reward": {"on_invalid": "exclude", "num_workers": 0}, **LOCAL},
        output_dir=str(tmp_path / "out"),
    )
    metrics = trainer.train(dataset=PromptDataset(str(prompts), trainer_tokenizer(tiny_model_dir), 16))
    assert metrics["reward/excluded"] == 1 and metrics["reward/one_mean"] == 1
    both = {"custom_reward_function": {"path": "mine.py"}}
    named = PPOTrainer(str(tiny_model_dir), reward_fn=length, config={"reward": both, **LOCAL})
    with pytest.raises(ValueError, match="a reward function is given, and reward.custom_reward_function.path or"):
        named.train(dataset=PromptDataset(str(prompts), trainer_tokenizer(tiny_model_dir), 16))


def test_the_page_lists_the_short_keys() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python_api.md").read_text(encoding="utf-8")
    missing = [
        f"| `{short}` | `{full}` |" for short, full in SHORT_KEYS.items() if f"| `{short}` | `{full}` |" not in page
    ]
    assert missing == []


def test_a_misspelt_short_key_and_a_tokenizer_of_another_model(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"unknown key training.num_epoch \(config\): did you mean training.num_epochs"
    ):
        PPOTrainer(actor_model=str(tiny_model_dir), config={"training": {"num_epoch": 1}})
    tokenizer = trainer_tokenizer(tiny_model_dir)

    def train() -> None:
        PPOTrainer(
            actor_model=str(tiny_model_dir),
            reward_fn=lambda prompts, responses: [1.0] * len(responses),
            dataset=PromptDataset(["1+1="] * 4, tokenizer, 16),
            config={"training": {"batch_size": 4}, **LOCAL},
            output_dir=str(tmp_path / "out"),
        ).train()

    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="the tokenizer has no pad token"):
        train()
    tokenizer.pad_token = "<pad>"
    tokenizer.add_tokens(["another"])
    with pytest.raises(ValueError, match="has 129 tokens, but the vocabulary of policy, critic, reference .* has 128"):
        train()


class StopWhenSeen(Callback):
    def __init__(self) -> None:
        self.saved: list[tuple[int, list[str]]] = []

    def on_validation_end(self, trainer: RayPPOTrainer, step: int, metrics: dict[str, float]) -> None:
        trainer.should_stop = step == 1

    def on_save(self, trainer: RayPPOTrainer, step: int, folder: Path) -> None:
        self.saved.append((step, sorted(path.name for path in (folder / "actor" / "huggingface").glob("tokenizer*"))))


def test_a_run_that_a_validation_ends_keeps_its_last_checkpoint(
    tiny_model_dir: Path, prompts: Path, tmp_path: Path
) -> None:
    seen, tokenizer = StopWhenSeen(), trainer_tokenizer(tiny_model_dir)
    trainer = PPOTrainer(
        str(tiny_model_dir),
        reward_fn=lambda prompts, responses: [float(len(response)) for response in responses],
        dataset=PromptDataset(str(prompts), tokenizer, 16),
        val_dataset=PromptDataset(str(prompts), tokenizer, 16),
        config={
            "training": {"batch_size": 4, "num_steps": 3},
            "rollout": {"max_response_length": 4},
            "trainer": {"worker_group": "local", "test_freq": 1, "save_freq": 0, "val_before_train": False},
        },
        callbacks=[seen],
        output_dir=str(tmp_path / "out"),
    )
    trainer.train()
    # With its tokenizer, so that the folder is all that a later run needs.
    assert seen.saved == [(1, ["tokenizer.json", "tokenizer_config.json"])]


def test_methods_of_callbacks_that_the_loop_could_not_call() -> None:
    class Short(Callback):
        def on_step_end(self, trainer: Any, step: int) -> None:  # type: ignore[override]
            pass

    class Misspelt(Callback):
        def on_step_ended(self, trainer: Any) -> None:
            pass

    with pytest.raises(
        TypeError, match=r"callbacks\[0\]: Short.on_step_end must take \(self, trainer, step, batch, met"
    ):
        PPOTrainer("folder", callbacks=[Short()])
    with pytest.raises(
        TypeError, match=r"callbacks\[1\]: Misspelt.on_step_ended is never called: .* on_train_begin, on_"
    ):
        PPOTrainer("folder", callbacks=[Callback(), Misspelt()])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": []}, "dataset is empty"),
        (
            {"config": {"training": {"batch_size": 4}, "data": {"train_batch_size": 8}}},
            "config has training.batch_size=4 and data.train_batch_size=8, which are one key: leave one out",
        ),
        (
            {"config": {"algorithm": {"name": "rloo"}}, "algorithm": "grpo"},
            "algorithm.name is 'rloo' by config and 'grpo' by algorithm: leave one out",
        ),
        (
            {"config": {"trainer": {"default_local_dir": "a"}}, "output_dir": "b"},
            "trainer.default_local_dir is 'a' by config and 'b' by output_dir: leave one out",
        ),
        (
            {
                "config": {"trainer": {"device_map": {"ref": {"type": "cpu"}}}},
                "device_map": {"critic": {"type": "cpu"}},
            },
            "device_map is given, and config has trainer.device_map: leave one out",
        ),
        ({"config": {"batch_size": 8}}, r"unknown key batch_size \(config\): did you mean training.batch_size"),
        ({"config": {"trainner": {}}}, "unknown key trainner"),
    ],
)
def test_what_contradicts_itself(tiny_model_dir: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPOTrainer(**{"actor_model": str(tiny_model_dir), **given})


def test_an_algorithm_with_its_arguments(tiny_model_dir: Path) -> None:
    trainer = PPOTrainer(str(tiny_model_dir), algorithm={"name": "kto", "beta": 0.3}, config={"rollout": {"n": 2}})
    assert trainer.config.algorithm.preference.loss == "kto" and trainer.config.algorithm.preference.beta == 0.3


def test_what_train_refuses(tiny_model_dir: Path, prompts: Path, tmp_path: Path) -> None:
    tokenizer = trainer_tokenizer(tiny_model_dir)
    dataset = PromptDataset(str(prompts), tokenizer, 16)

    def refuse(message: str, dataset: Any = dataset, config: dict[str, Any] | None = None, **given: Any) -> None:
        trainer = PPOTrainer(
            str(tiny_model_dir), config={**LOCAL, **(config or {})}, output_dir=str(tmp_path / "out"), **given
        )
        with pytest.raises(ValueError, match=message):
            trainer.train(dataset)

    def score(prompts: list[str], responses: list[str]) -> list[float]:
        return [0.0] * len(prompts)

    grpo = {"algorithm": "grpo", "config": {"rollout": {"n": 2, "max_response_length": 4}}}
    refuse("critic_model is given, but algorithm grpo as configured uses none", critic_model="folder", **grpo)
    refuse(
        "ref_model is given, but algorithm rloo as .* uses none",
        ref_model="folder",
        algorithm="rloo",
        config={"rollout": {"n": 2}, "algorithm": {"use_kl_in_reward": False}},
    )
    refuse("dataset is given, and config has data.train_files=a.parquet", config={"data": {"train_files": "a.parquet"}})
    refuse(
        "data.max_prompt_length=8, but the data set has max_prompt_length=16", config={"data": {"max_prompt_length": 8}}
    )
    refuse("ppo_mini_batch_size", reward_fn=score, config={"training": {"batch_size": 4, "mini_batch_size": 8}})
    refuse("or by a reward model", config={"training": {"batch_size": 4}})
    long = PromptDataset(["1+1="] * 6 + ["1+1=" * 20], tokenizer, 16)
    refuse("prompt 6: .*max_prompt_length", long, reward_fn=score, config={"training": {"batch_size": 4}})
    other = get_model_and_tokenizer(str(tiny_model_dir), dtype="float32")[1]
    other.add_tokens(["<another>"])
    refuse("has another vocabulary than that of the data set", tokenizer=other, reward_fn=score)


def test_files_named_by_the_config_and_a_validation_at_the_end(
    tiny_model_dir: Path, prompts: Path, tmp_path: Path
) -> None:
    trainer = PPOTrainer(
        str(tiny_model_dir),
        reward_fn=lambda prompts, responses: [float(len(response)) for response in responses],
        val_dataset=PromptDataset(str(prompts), trainer_tokenizer(tiny_model_dir), 16),
        config={
            "training": {"batch_size": 4, "num_steps": 2},
            "rollout": {"max_response_length": 4},
            "data": {"train_files": str(prompts), "max_prompt_length": 16},
            "trainer": {"worker_group": "local"},
        },
        output_dir=str(tmp_path / "out"),
    )
    final = trainer.train()
    records = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert ["val/all/reward/mean@1" in record for record in records] == [True, False, True]
    assert final["val/all/reward/mean@1"] == records[-1]["val/all/reward/mean@1"]


def test_modules_that_cannot_be_trained_as_they_are(tiny_model_dir: Path) -> None:
    model = get_model_and_tokenizer(str(tiny_model_dir), dtype="float32")[0]
    model.model.embed_tokens.requires_grad_(False)
    with pytest.raises(
        ValueError, match="actor_model has 1 frozen parameters, such as 'model.embed_tokens.weight', but"
    ):
        PPOTrainer(model)
    PPOTrainer(str(tiny_model_dir), ref_model=model)  # a reference is not trained
    with torch.device("meta"):
        empty = type(model)(model.config)
    with pytest.raises(ValueError, match=r"critic_model has no weights \('model.embed_tokens.weight' is on the meta"):
        PPOTrainer(str(tiny_model_dir), critic_model=empty)


def test_a_run_that_failed_has_no_model(tiny_model_dir: Path, prompts: Path, tmp_path: Path) -> None:
    class Fails(Callback):
        def on_train_end(self, trainer: RayPPOTrainer, metrics: dict[str, float]) -> None:
            raise OSError("no plot")

    trainer = PPOTrainer(
        str(tiny_model_dir),
        reward_fn=lambda prompts, responses: [1.0] * len(prompts),
        dataset=PromptDataset(str(prompts), trainer_tokenizer(tiny_model_dir), 16),
        config={"training": {"batch_size": 4, "num_steps": 1}, **LOCAL},
        callbacks=[Fails()],
        output_dir=str(tmp_path / "out"),
    )
    with pytest.raises(OSError, match="no plot"):
        trainer.train()
    with pytest.raises(
        RuntimeError, match="no trained model, since train.. ended with an error; with trainer.save_freq"
    ):
        trainer.get_model()
