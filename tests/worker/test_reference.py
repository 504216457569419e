"""The frozen policy: what it holds while nobody asks it."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from verl.config.loader import load_config
from verl.protocol import DataProto
from verl.trainer.checks import checked
from verl.worker.preference import PreferenceReferenceWorker
from verl.worker.reference import ReferencePolicyWorker

REF = "actor_rollout_ref.ref"


@pytest.fixture(autouse=True)
def collector_off() -> Iterator[None]:
    """Only what the workers do themselves frees anything."""
    gc.disable()
    yield
    gc.enable()


def parameters_of(worker: ReferencePolicyWorker) -> list[weakref.ref[torch.Tensor]]:
    return [weakref.ref(parameter) for parameter in worker.engine.module.parameters()]


def alive(parameters: list[weakref.ref[torch.Tensor]]) -> int:
    return sum(parameter() is not None for parameter in parameters)


def responses() -> DataProto:
    return DataProto.from_dict(
        {
            "input_ids": torch.tensor([[7, 8, 9, 10]]),
            "attention_mask": torch.ones(1, 4, dtype=torch.long),
            "response_mask": torch.ones(1, 2, dtype=torch.long),
        }
    )


@pytest.mark.parametrize("cls", [ReferencePolicyWorker, PreferenceReferenceWorker])
def test_an_unloaded_model_is_gone_and_comes_back(
    tiny_run: Callable[..., list[str]], cls: type[ReferencePolicyWorker]
) -> None:
    # bf16 over fp32 weights makes FSDP shard, and recomputation wraps the blocks: both tie knots.
    extra = (
        f"{REF}.fsdp_config.mixed_precision.param_dtype=bf16",
        "actor_rollout_ref.model.enable_gradient_checkpointing=true",
        f"{REF}.unload={'true' if cls is ReferencePolicyWorker else 'false'}",
    )
    worker = cls(checked(load_config(tiny_run(*extra))))
    worker.init_model()
    parameters = parameters_of(worker)
    assert alive(parameters) == len(parameters) > 10
    first = worker.compute_ref_log_prob(responses()).batch["ref_log_probs"]
    if isinstance(worker, PreferenceReferenceWorker):
        assert alive(parameters) == len(parameters)
        worker.release()
    assert alive(parameters) == 0
    assert torch.equal(worker.compute_ref_log_prob(responses()).batch["ref_log_probs"], first)
    worker.close()
