"""Whole runs without rollouts on a tiny model: what they learn, and the laws that only the loop can keep."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import build_tiny_tokenizer
from verl.config import ConfigError, PreferenceConfig, RewardModelTrainingConfig, SFTConfig
from verl.config.loader import load, to_dict
from verl.protocol import DataProto
from verl.trainer.main_preference import main as preference_main
from verl.trainer.main_reward_model import main as reward_model_main
from verl.trainer.main_sft import main as sft_main
from verl.trainer.offline import OfflineTrainer, checked
from verl.trainer.preference import PreferenceTrainer, with_mismatched
from verl.trainer.reward_model import RewardModelTrainer
from verl.trainer.sft import SFTTrainer

CLOCK = ("timing/", "perf/")
POLICY = "actor_rollout_ref"
Records = list[dict[str, Any]]
Run = Callable[..., Records]

MAINS = {
    "sft": (sft_main, ["optim.lr=1e-3"]),
    # AdamW makes whole steps of the rounding errors in gradients that begin at 0, as those below a new head do.
    "reward_model": (reward_model_main, ["optim.lr=1e-3", "optim.eps=1e-5"]),
    "dpo": (preference_main, ["algorithm.name=dpo", f"{POLICY}.actor.optim.lr=1e-3"]),
    "kto": (preference_main, ["algorithm.name=kto", f"{POLICY}.actor.optim.lr=1e-3"]),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Words in letters are right, numbers are wrong: something that a tiny model learns in seconds."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("preferences")

    def word() -> str:
        return "".join(rng.choice("abcdefgh") for _ in range(rng.randint(1, 4)))

    rows = []
    for _ in range(64):
        prompt = [{"role": "user", "content": word()}]
        answer = {"role": "assistant", "content": word()}
        rows.append(
            {
                "messages": [
                    *prompt,
                    answer,
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": "yes"},
                ],
                "prompt": prompt,
                "chosen": [answer],
                "rejected": [{"role": "assistant", "content": str(rng.randint(0, 999))}],
            }
        )
    paths = {"train": folder / "train.jsonl", "val": folder / "val.jsonl"}
    paths["train"].write_text("\n".join(map(json.dumps, rows[:40])))
    paths["val"].write_text("\n".join(map(json.dumps, rows[40:])))
    return paths


@pytest.fixture
def run(files: dict[str, Path], tiny_model_dir: Path, tmp_path: Path) -> Run:
    """`run(kind, "key=value", ..., name="run")` -> the records of a run of 3 steps; the given keys win."""

    def execute(kind: str, *overrides: str, name: str = "run") -> Records:
        main, defaults = MAINS[kind]
        section = f"{POLICY}.model" if kind in ("dpo", "kto") else "model"
        folder = tmp_path / name
        common = [
            f"data.train_files={files['train']}",
            f"data.val_files={files['val']}",
            f"{section}.path={tiny_model_dir}",
            "data.train_batch_size=8",
            "trainer.total_training_steps=3",
            "trainer.worker_group=local",
            "trainer.logger=[file]",
            "trainer.val_before_train=false",
            f"trainer.default_local_dir={folder}",
        ]
        main([*common, *defaults, *overrides])
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    return execute


def assert_same(one: Records, two: Records, tolerance: float) -> None:
    assert [record["step"] for record in one] == [record["step"] for record in two]
    for left, right in zip(one, two, strict=True):
        for name, value in left.items():
            # While policy and reference agree, rounding decides which half of a pair is ahead.
            undecided = name == "train/rewards/accuracies" and left["step"] == 1 and tolerance > 0
            if isinstance(value, float) and not name.startswith(CLOCK) and not undecided:
                assert right[name] == pytest.approx(value, abs=tolerance, rel=tolerance), (left["step"], name)


# ---- learning ----


@pytest.mark.parametrize("kind", ["dpo", "kto", "reward_model"])
def test_held_out_preferences_are_learnt(run: Run, kind: str) -> None:
    records = run(kind, "trainer.total_training_steps=20", "trainer.val_before_train=true", "trainer.test_freq=0")
    first, last = records[0], records[-1]
    assert first["step"] == 0
    assert first["val/rewards/accuracies"] == 0, "policy and reference agree, and so do the scores of a new head"
    assert last["val/rewards/accuracies"] >= 0.9
    assert last["val/rewards/chosen"] > 0 > last["val/rewards/rejected"]
    assert last["val/loss"] < first["val/loss"]


def test_sft_lowers_the_loss_of_held_out_chats(run: Run) -> None:
    records = run("sft", "trainer.total_training_steps=20", "trainer.val_before_train=true", "trainer.test_freq=0")
    assert records[-1]["val/loss"] < records[0]["val/loss"] - 1
    for name in ("train/loss", "train/grad_norm", "train/lr", "perf/tokens_per_second", "timing/update"):
        assert name in records[1]


def test_a_trained_reward_model_is_what_a_ppo_run_loads(run: Run, tmp_path: Path) -> None:
    from verl.config import ModelConfig
    from verl.models.loading import load_model_tokenizer
    from verl.models.reward import RewardScorer

    run("reward_model", "trainer.total_training_steps=12", "trainer.save_freq=0", "data.val_files=null")
    config = ModelConfig(path=str(tmp_path / "run" / "global_step_12" / "model" / "huggingface"))
    scorer, tokenizer = RewardScorer.load(config, torch.float32), load_model_tokenizer(config)
    scores = []
    for answer in ("abc", "123"):
        chat = [{"role": "user", "content": "de"}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(chat, tokenize=False).rstrip("\n")
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        batch = DataProto.from_dict({"input_ids": ids, "attention_mask": torch.ones_like(ids)}).batch
        scores.append(scorer(batch)["scores"].item())
    assert scores[0] > scores[1]
    # And it can be trained on, with the head it has.
    assert RewardScorer.to_train(config, torch.float32).value_head.weight.abs().sum() > 0  # type: ignore[union-attr]


# ---- laws ----

CUTS = {
    "sft": [
        ["data.micro_batch_size_per_gpu=1"],
        ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=40", "model.use_remove_padding=true"],
    ],
    "reward_model": [
        ["data.micro_batch_size_per_gpu=3"],
        ["data.use_dynamic_bsz=true", "data.max_token_len_per_gpu=60"],
    ],
    "dpo": [
        [f"{POLICY}.actor.ppo_micro_batch_size_per_gpu=3", f"{POLICY}.model.use_remove_padding=true"],
        [f"{POLICY}.actor.use_dynamic_bsz=true", f"{POLICY}.actor.ppo_max_token_len_per_gpu=60"],
        ["algorithm.precompute_ref_log_probs=true"],
    ],
    "kto": [
        [f"{POLICY}.actor.ppo_micro_batch_size_per_gpu=3", "trainer.balance_batch=true"],
        [f"{POLICY}.ref.log_prob_micro_batch_size_per_gpu=1", f"{POLICY}.ref.unload=true"],
    ],
}


@pytest.mark.parametrize(("kind", "cut"), [(kind, cut) for kind, cuts in CUTS.items() for cut in cuts])
def test_law_2_cutting_changes_nothing(run: Run, kind: str, cut: list[str]) -> None:
    extra = [f"{POLICY}.actor.ppo_mini_batch_size=4"] if kind in ("dpo", "kto") else []
    whole = run(kind, "trainer.test_freq=0", *extra, name="whole")
    assert_same(whole, run(kind, "trainer.test_freq=0", *extra, *cut, name="cut"), tolerance=1e-4)


@pytest.mark.parametrize("kind", MAINS)
def test_law_5_stop_and_resume(run: Run, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    whole = run(kind, "trainer.total_training_steps=7", "trainer.total_epochs=2", name="whole")
    for steps in (3, 7):
        parts = run(kind, f"trainer.total_training_steps={steps}", "trainer.save_freq=3", name="parts")
    assert_same(whole, parts, tolerance=0)
    caplog.set_level("INFO", logger="verl.trainer")
    assert len(run(kind, "trainer.total_training_steps=7", "trainer.save_freq=3", name="parts")) == 7
    assert "step 7 of 7 is done" in caplog.text


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    """One Ray for the runs of this file: each finds it running and leaves it so."""
    from verl.workers.ray import ensure_ray

    with ensure_ray(num_cpus=2):
        yield


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("kind", "processes"), [("sft", 1), ("sft", 2), ("reward_model", 2), ("dpo", 2), ("kto", 2)])
def test_law_6_local_and_ray(run: Run, kind: str, processes: int) -> None:
    # 7 rows a step: two processes need a pad row.
    keys = [
        "data.train_batch_size=7",
        "data.val_max_samples=5",
        "trainer.total_training_steps=2",
        "trainer.test_freq=0",
    ]
    layout = ["trainer.worker_group=ray", f"trainer.n_gpus_per_node={processes}"]
    assert_same(run(kind, *keys, name="local"), run(kind, *keys, *layout, name="ray"), tolerance=1e-4)


# ---- KTO's mismatched answers ----


def judged_rows(prompts: list[int]) -> DataProto:
    """Rows of a prompt token and an answer token 10, 11, 12, ..."""
    rows = len(prompts)
    return DataProto.from_dict(
        {
            "input_ids": torch.tensor([[prompt, 10 + row] for row, prompt in enumerate(prompts)]),
            "attention_mask": torch.ones(rows, 2, dtype=torch.long),
            "response_mask": torch.ones(rows, 1, dtype=torch.long),
            "labels": torch.tensor([True] * rows),
        }
    )


@pytest.mark.parametrize(
    ("prompts", "size", "answers", "mask"),
    [
        ([1, 2, 3], 3, [11, 12, 10], [1, 1, 1]),
        ([1, 1, 2, 2], 4, [12, 13, 10, 11], [1, 1, 1, 1]),  # moved on by 2, so that all prompts differ
        ([1, 2, 3, 4], 2, [11, 10, 13, 12], [1, 1, 1, 1]),  # within each mini-batch
        ([1, 1, 2], 3, [11, 12, 10], [0, 1, 1]),
        ([1, 1], 2, [10, 11], [0, 0]),
        ([1], 1, [10], [0]),
    ],
)
def test_each_answer_goes_once_to_another_prompt(
    prompts: list[int], size: int, answers: list[int], mask: list[int]
) -> None:
    rows = judged_rows(prompts)
    batch = with_mismatched(rows, size).batch
    assert torch.equal(batch["input_ids"][:, 0], rows.batch["input_ids"])
    assert batch["input_ids"][:, 1].tolist() == [list(pair) for pair in zip(prompts, answers, strict=True)]
    assert batch["response_mask"][:, :, 0].tolist() == [[1, seen] for seen in mask]
    assert batch["labels"].all() and batch["labels"].shape == (len(prompts),)


# ---- configs ----


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("dpo", ["algorithm.nmae=dpo"], r"unknown key algorithm.nmae .*did you mean algorithm.name"),
        ("dpo", ["algorithm.name=dop"], "unknown preference loss 'dop'. Did you mean 'dpo'"),
        ("dpo", ["algorithm.simpo_gamma=1"], "'dpo' knows no gamma; known: beta, label_smoothing"),
        ("dpo", ["algorithm.beta=0"], "algorithm.beta=0.0: must be above 0"),
        ("dpo", [f"{POLICY}.actor.ppo_mini_batch_size=3"], "must divide data.train_batch_size=8: 8 = 2 x 3 [+] 2"),
        ("kto", ["algorithm.precompute_ref_log_probs=true"], "not known ahead: leave it out"),
        ("sft", ["data.max_length=0"], "data.max_length=0: must be at least 1"),
        ("sft", ["model.path=null"], "model.path is missing"),
        ("sft", ["trainer.n_gpus_per_node=2"], "trainer.worker_group=local runs in one process"),
        ("sft", ["data.val_files=null", "trainer.test_freq=1"], "data.val_files is not set"),
        ("sft", ["data.train_batch_size=41"], "data.train_batch_size=41 is more than the 40"),
        ("reward_model", ["model.use_remove_padding=true"], "reward models read one text a row"),
    ],
)
def test_mistakes_are_told_before_a_model_loads(run: Run, kind: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(kind, *overrides)


def test_dry_run_prints_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["data.train_files=x.jsonl", f"{POLICY}.model.path=/m", "data.train_batch_size=8", "trainer.seed=5"]
    assert preference_main([*overrides, "--dry-run"]) == {}
    printed = capsys.readouterr().out
    assert "ppo_mini_batch_size: 8" in printed and "experiment_name: preference" in printed
    assert printed.count("seed: 5") == 2, "data.seed follows trainer.seed"


def test_resolving_twice_changes_nothing() -> None:
    for root, section in ((SFTConfig, ""), (RewardModelTrainingConfig, ""), (PreferenceConfig, f"{POLICY}.")):
        config = checked(load(root, ["data.train_files=x.jsonl", f"{section}model.path=/m"]))
        assert to_dict(checked(config)) == to_dict(config)
    with pytest.raises(ConfigError, match="trainer.logger=wand: expected one of console"):
        checked(load(SFTConfig, ["data.train_files=x.jsonl", "model.path=/m", "trainer.logger=[wand]"]))


@pytest.mark.parametrize("trainer_cls", [SFTTrainer, RewardModelTrainer, PreferenceTrainer])
def test_a_trainer_in_a_script_with_objects_of_its_own(
    trainer_cls: type[OfflineTrainer[Any]], files: dict[str, Path], tiny_model_factory: Any, tmp_path: Path
) -> None:
    from verl.models.value import ValueModel

    root = {SFTTrainer: SFTConfig, RewardModelTrainer: RewardModelTrainingConfig, PreferenceTrainer: PreferenceConfig}
    config: Any = root[trainer_cls]()
    config.data.train_files, config.data.train_batch_size = str(files["train"]), 8
    config.trainer.worker_group, config.trainer.logger = "local", []
    config.trainer.total_training_steps, config.trainer.default_local_dir = 1, str(tmp_path)
    model = tiny_model_factory()
    if trainer_cls is RewardModelTrainer:
        model = ValueModel(model.base_model)
    roles = {"actor", "ref"} if trainer_cls is PreferenceTrainer else {"model"}
    modules = dict.fromkeys(roles, model) if trainer_cls is not PreferenceTrainer else {
        "actor": model, "ref": tiny_model_factory()
    }  # fmt: skip
    trainer = trainer_cls(config, build_tiny_tokenizer(), modules=modules)
    assert trainer.init_workers().fit()["train/loss"] > 0


def test_the_last_figures_are_returned(files: dict[str, Path], tiny_model_dir: Path, tmp_path: Path) -> None:
    common = [f"model.path={tiny_model_dir}", f"data.train_files={files['train']}", "data.train_batch_size=8"]
    common += ["trainer.worker_group=local", "trainer.logger=[file]", "trainer.total_training_steps=2", "optim.lr=1e-3"]
    validation = [f"data.val_files={files['val']}", "trainer.test_freq=-1"]
    for name, keys in (("without", []), ("before", validation)):
        folder = tmp_path / name
        final = sft_main([*common, *keys, f"trainer.default_local_dir={folder}"])
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert len(records) == 2 + (name == "before")
        assert final["train/loss"] == records[-1]["train/loss"] < records[-2].get("train/loss", 99.0)


def test_a_batch_that_is_cut_before_every_answer_trains_nothing(
    files: dict[str, Path], tiny_model_dir: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": "a long question " * 4, "response": "b"} for _ in range(4)]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    final = sft_main(
        [
            f"model.path={tiny_model_dir}",
            f"data.train_files={tmp_path / 'long.jsonl'}",
            "data.train_batch_size=4",
            "data.max_length=8",
            "data.truncation=right",
            "trainer.worker_group=local",
            "trainer.logger=[file]",
            "trainer.total_training_steps=1",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ]
    )
    assert final["data/untrained_rows"] == 4 and "train/loss" not in final
