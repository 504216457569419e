"""What users get wrong: each a clear error before any model loads."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def refuse(tiny_run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`refuse(message, *overrides)`: the run must end with that error, and no model may have been loaded by then."""
    from verl.trainer.main_ppo import main
    from verl.trainer.ray_ppo import RayPPOTrainer

    def not_reached(self: RayPPOTrainer) -> None:
        pytest.fail("models would have been loaded")

    monkeypatch.setattr(RayPPOTrainer, "init_workers", not_reached)

    def check(message: str, *overrides: str) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            main(tiny_run(*overrides))

    return check


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def row(**changes: Any) -> dict[str, Any]:
    return {"data_source": "arithmetic", "prompt": "1+1=", "reward_model": {"ground_truth": "2"}, **changes}


def test_a_missing_file(refuse: Callable[..., None], tmp_path: Path) -> None:
    refuse("nothing.parquet", f"data.train_files={tmp_path / 'nothing.parquet'}")


def test_a_missing_column(refuse: Callable[..., None], tmp_path: Path) -> None:
    rows = [{key: value for key, value in row().items() if key != "reward_model"}] * 4
    refuse("reward_model", f"data.train_files={write(tmp_path / 'x.parquet', rows)}")


def test_an_empty_data_set(refuse: Callable[..., None], tmp_path: Path) -> None:
    table = pa.Table.from_pylist([row()]).slice(0, 0)
    pq.write_table(table, tmp_path / "empty.parquet")
    refuse("empty.parquet.*no rows", f"data.train_files={tmp_path / 'empty.parquet'}")


def test_prompts_that_are_all_too_long(refuse: Callable[..., None], tmp_path: Path) -> None:
    rows = [row(prompt="1+" * 20)] * 4
    refuse(
        "max_prompt_length",
        f"data.train_files={write(tmp_path / 'long.parquet', rows)}",
        "data.filter_overlong_prompts=true",
    )


def test_a_source_without_a_rule(refuse: Callable[..., None], tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", [row()] * 5 + [row(data_source="nowhere")] * 5)
    refuse(
        "item 5 of the training data: there is no built-in rule for data_source 'nowhere'",
        f"data.train_files={file}",
        "reward.custom_reward_function.path=null",
    )


def test_a_batch_bigger_than_the_data_set(refuse: Callable[..., None], tmp_path: Path) -> None:
    refuse("4.*3|3.*4", f"data.train_files={write(tmp_path / 'few.parquet', [row()] * 3)}")


def test_a_mini_batch_that_does_not_fit(refuse: Callable[..., None]) -> None:
    refuse("mini-batch of 8 prompts > the train batch of 4", "actor_rollout_ref.actor.ppo_mini_batch_size=8")


def test_a_misspelt_key(refuse: Callable[..., None]) -> None:
    refuse("did you mean data.train_batch_size", "data.train_batchsize=4")


def test_an_unknown_estimator(refuse: Callable[..., None]) -> None:
    refuse("unknown advantage estimator 'gea'.*gae", "algorithm.adv_estimator=gea")


def test_an_unknown_policy_loss_and_its_arguments(refuse: Callable[..., None]) -> None:
    refuse("unknown policy loss 'ppo2'", "actor_rollout_ref.actor.policy_loss.loss_mode=ppo2")
    refuse("clip_rotio", "actor_rollout_ref.actor.policy_loss.loss_kwargs={clip_rotio: 1}")


def test_a_model_folder_without_weights(refuse: Callable[..., None], tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "no_weights"
    shutil.copytree(tiny_model_dir, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    refuse("no weights", f"actor_rollout_ref.model.path={folder}")


def test_a_chat_without_a_template(refuse: Callable[..., None], tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "no_template"
    shutil.copytree(tiny_model_dir, folder, ignore=shutil.ignore_patterns("chat_template*"))
    chats = [row(prompt=[{"role": "user", "content": "1+1="}])] * 4
    refuse(
        "data.chat_template",
        f"actor_rollout_ref.model.path={folder}",
        f"data.train_files={write(tmp_path / 'chat.parquet', chats)}",
    )


def test_a_dry_run_prints_the_resolved_config(
    tiny_run: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    from verl.trainer.main_ppo import main

    assert main([*tiny_run(), "--dry-run"]) == {}
    printed = capsys.readouterr().out
    assert "clip_ratio_high: 0.2" in printed and "response_length: 5" in printed


def test_the_command_line_says_it_in_one_line_and_fails(tiny_run: Callable[..., list[str]]) -> None:
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *tiny_run("data.train_batchsize=4")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "data.train_batchsize" in done.stderr and "Traceback" not in done.stderr


def test_kl_in_the_reward_is_no_single_reward(refuse: Callable[..., None]) -> None:
    refuse("gdpo normalises rewards one by one", "algorithm.adv_estimator=gdpo", "algorithm.use_kl_in_reward=true")


def test_an_unknown_rollout_correction(refuse: Callable[..., None]) -> None:
    refuse("unknown rollout_is 'tokens'", "algorithm.rollout_correction.rollout_is=tokens")
    refuse(
        "'2_1'.* the lower must be below the upper",
        "algorithm.rollout_correction.rollout_rs=token_k1",
        "algorithm.rollout_correction.rollout_rs_threshold=2_1",
    )


@pytest.mark.parametrize("key", ["rollout_data_dir", "validation_data_dir", "default_local_dir"])
def test_a_folder_that_cannot_be_written_to(refuse: Callable[..., None], tmp_path: Path, key: str) -> None:
    (tmp_path / "file").touch()
    refuse(
        f"trainer.{key}=.*file: nothing can be written there",
        f"trainer.{key}={tmp_path / 'file'}",
        "trainer.save_freq=1",
        "trainer.logger=[console]",
    )


def test_a_checkpoint_that_is_not_there(refuse: Callable[..., None]) -> None:
    refuse(
        "trainer.resume_from_path names the checkpoint .*nothing",
        "trainer.resume_mode=resume_path",
        "trainer.resume_from_path=nothing",
    )


def test_a_column_of_a_name_that_the_run_uses(refuse: Callable[..., None], tmp_path: Path) -> None:
    refuse("training data have a column 'seed'", f"data.train_files={write(tmp_path / 'x.parquet', [row(seed=3)] * 4)}")


def test_sequences_longer_than_the_model_has_positions(refuse: Callable[..., None]) -> None:
    lengths = ("data.max_prompt_length=200", "data.max_response_length=100")
    refuse(r"200 \+ .* 100 = 300 tokens, but the model of policy, critic, reference .* has 256 positions", *lengths)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_an_engine_that_is_not_installed(refuse: Callable[..., None]) -> None:
    refuse("rollout.name=vllm needs vllm, which is not installed: pip install", "actor_rollout_ref.rollout.name=vllm")


def test_heads_that_cannot_be_split(refuse: Callable[..., None]) -> None:
    refuse(
        r"tensor_model_parallel_size=3: 4 attention heads \(2 key/value heads\) cannot be split over tensor parallel 3",
        "actor_rollout_ref.rollout.name=auto",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
        "trainer.n_gpus_per_node=3",
        "trainer.worker_group=ray",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    )


def test_a_length_that_does_not_hold_prompt_and_response(refuse: Callable[..., None]) -> None:
    refuse(
        r"max_model_len=12: a sequence may take data.max_prompt_length 8 \+ data.max_response_length 5 = 13 tokens",
        "actor_rollout_ref.rollout.max_model_len=12",
    )
