"""The process that trains and generates: which sampling it takes, and that it never generates with old weights."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from verl.config.loader import load_config
from verl.protocol import DataProto
from verl.rollout.base import Sampling
from verl.trainer.checks import checked
from verl.worker.actor_rollout import ActorRolloutWorker

VALIDATION = "actor_rollout_ref.rollout.val_kwargs"


@pytest.fixture
def worker(tiny_run: Callable[..., list[str]]) -> Iterator[ActorRolloutWorker]:
    """Its validation samples, but from the most likely token alone."""
    chosen = (f"{VALIDATION}.{setting}" for setting in ("do_sample=true", "temperature=1", "top_k=1"))
    worker = ActorRolloutWorker(checked(load_config(tiny_run(*chosen))))
    worker.init_model()
    yield worker
    worker.close()


def prompts(sampling: str) -> DataProto:
    columns = {
        "input_ids": torch.tensor([[0, 5, 9], [7, 8, 9]]),
        "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "seed": torch.tensor([1, 2]),
    }
    return DataProto.from_dict(columns, meta_info={"pad_token_id": 0, "eos_token_ids": [2], "sampling": sampling})


def test_training_validation_and_greedy_sample_as_the_config_says(worker: ActorRolloutWorker) -> None:
    made = {
        kind: worker.generate_sequences(prompts(kind)).batch["responses"] for kind in ("train", "validate", "greedy")
    }
    assert torch.equal(made["validate"], made["greedy"])
    assert not torch.equal(made["train"], made["greedy"])


def test_the_engine_sleeps_until_the_first_batch(worker: ActorRolloutWorker, tmp_path: Path) -> None:
    def asleep() -> bool:
        with pytest.raises(RuntimeError, match="the rollout engine sleeps"):
            worker.generation.engine.generate([[5, 9]], Sampling(1))
        return True

    assert asleep()
    worker.generate_sequences(prompts("train"))
    worker.save_checkpoint(str(tmp_path / "actor"))
    worker.sync_weights()  # as after an update
    worker.generation.engine.wake_up()
    worker.load_checkpoint(str(tmp_path / "actor"))
    assert asleep()
    assert len(worker.generate_sequences(prompts("train")).batch["responses"]) == 2


def test_weights_older_than_the_last_update_are_refused(worker: ActorRolloutWorker) -> None:
    worker.weights_version += 1  # as update_actor does
    with pytest.raises(
        RuntimeError, match=r"engine has weights of version 0, the trainer is at 1: call sync_weights\(\) after"
    ):
        worker.generate_sequences(prompts("train"))
    worker.sync_weights()
    assert len(worker.generate_sequences(prompts("train")).batch["responses"]) == 2
