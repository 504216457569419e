import gc
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.conftest import build_ragged_batch, build_tiny_model
from verl.config import FSDPConfig, MixedPrecisionConfig, OptimConfig
from verl.engine.base import MicroBatching, Outputs
from verl.engine.fsdp.engine import FSDPEngine
from verl.models.policy import PolicyModel
from verl.utils.metrics import Metrics

BATCH = build_ragged_batch(rows=6)
TOKENS = int(BATCH["response_mask"].sum())
ALL = MicroBatching()


def build(optim: OptimConfig | None = None, frozen: bool = False, **fsdp: Any) -> FSDPEngine:
    optim = None if frozen else optim or OptimConfig(lr=1e-2)
    return FSDPEngine(PolicyModel(build_tiny_model("llama")), FSDPConfig(**fsdp), optim, "cpu", total_steps=8)


def likelihood(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
    return -outputs["log_probs"].sum(), {}


def train(engine: FSDPEngine, steps: int) -> list[dict[str, float]]:
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    results = []
    for _ in range(steps):
        engine.forward_backward(BATCH[rank::world], likelihood, TOKENS, MicroBatching(rows=2))
        results.append(engine.optim_step())
    return results


def weights(engine: FSDPEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.named_weights()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_one_process_that_shards_has_a_group_as_long_as_its_engines() -> None:
    gc.collect()  # what other tests left
    mixed = MixedPrecisionConfig(param_dtype="bf16")
    first, second = build(mixed_precision=mixed), build(mixed_precision=mixed)
    train(first, 1)
    del first
    gc.collect()
    train(second, 1)
    assert dist.is_initialized()
    del second
    gc.collect()
    assert not dist.is_initialized()


def test_forward_keeps_the_order_of_rows_and_no_gradients() -> None:
    engine = build()
    whole = engine.forward(BATCH, ALL, compute_entropy=True)
    torch.testing.assert_close(whole, engine.module(BATCH, compute_entropy=True))
    for micro in (MicroBatching(rows=1), MicroBatching(rows=4), MicroBatching(max_tokens=9)):
        torch.testing.assert_close(engine.forward(BATCH, micro, compute_entropy=True), whole, atol=1e-5, rtol=0)
    assert not whole["log_probs"].requires_grad


def test_g7_the_logged_rate_is_the_one_used() -> None:
    engine = build(OptimConfig(lr=1.0, lr_warmup_steps=4, clip_grad=0, weight_decay=0, betas=[0.0, 0.0]))
    for expected in (0.25, 0.5, 0.75, 1.0):
        before = weights(engine)["model.norm.weight"]
        (result,) = train(engine, 1)
        # without momentum every weight moves by the rate itself
        moved = (weights(engine)["model.norm.weight"] - before).abs()
        assert result["lr"] == expected
        torch.testing.assert_close(moved, torch.full_like(moved, expected), rtol=1e-3, atol=0)


def test_the_gradient_is_clipped_after_its_norm_is_taken() -> None:
    engine = build(OptimConfig(clip_grad=0.5))
    engine.forward_backward(BATCH, likelihood, TOKENS, ALL)
    gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    assert engine.optim_step()["grad_norm"] == pytest.approx(norm) and norm > 0.5
    clipped = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    assert clipped == pytest.approx(0.5)


def nan_on_the_last_process(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
    last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1
    return outputs["log_probs"].sum() * (math.nan if last else 1.0), {}


def skip_and_go_on() -> tuple[bool, dict[str, float], dict[str, Tensor]]:
    """A good step, one with a NaN gradient (on one process), and a good one."""
    engine = build(OptimConfig(lr=1e-2, lr_warmup_steps=4))
    train(engine, 1)
    before = weights(engine)
    state = {p: {k: v.clone() for k, v in s.items()} for p, s in engine.optimizer.state.items()}
    engine.forward_backward(BATCH, nan_on_the_last_process, TOKENS, ALL)
    result = engine.optim_step()
    unchanged = all(torch.equal(tensor, before[name]) for name, tensor in weights(engine).items())
    for p, held in engine.optimizer.state.items():
        unchanged &= all(torch.equal(_local(v), _local(state[p][k])) for k, v in held.items())
    unchanged &= all(p.grad is None for p in engine.module.parameters())
    train(engine, 1)
    return unchanged, result, weights(engine)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def test_g6_a_step_with_a_nan_gradient_changes_nothing(run_distributed: Callable[..., list[Any]]) -> None:
    undisturbed = build(OptimConfig(lr=1e-2, lr_warmup_steps=4))
    train(undisturbed, 2)
    for unchanged, result, after in [skip_and_go_on(), *run_distributed(skip_and_go_on, 2)]:
        assert unchanged
        assert result["skipped"] == 1.0 and not math.isfinite(result["grad_norm"]) and result["lr"] == 0.5e-2
        for name, tensor in weights(undisturbed).items():
            torch.testing.assert_close(after[name], tensor, atol=2e-5, rtol=0)


def broken_loss(outputs: Outputs, batch: TensorDict) -> tuple[Tensor, Metrics]:
    raise ZeroDivisionError("a bug in the loss")


def fail_and_go_on() -> list[dict[str, float]]:
    engine = build(mixed_precision=MixedPrecisionConfig(param_dtype="bf16"))
    results = train(engine, 1)
    with pytest.raises(ZeroDivisionError):
        engine.forward_backward(BATCH, broken_loss, TOKENS, ALL)
    with pytest.raises(ValueError, match="temperature"):
        engine.forward(BATCH, ALL, temperature=0)
    return results + train(engine, 1)


def bf16_steps(steps: int) -> list[dict[str, float]]:
    return train(build(mixed_precision=MixedPrecisionConfig(param_dtype="bf16")), steps)


def test_a_loss_that_forgets_the_model_is_an_error() -> None:
    with pytest.raises(TypeError, match="does not depend on the model's outputs"):
        build().forward_backward(BATCH, lambda outputs, batch: (torch.zeros(()), {}), 1.0, ALL)


def test_b4_nothing_to_train_on_changes_no_weight() -> None:
    engine = build(OptimConfig(weight_decay=0))
    batch = BATCH.clone()
    batch["response_mask"].zero_()
    engine.forward_backward(batch, likelihood, 0.0, MicroBatching(rows=4))
    before = weights(engine)
    assert engine.optim_step()["grad_norm"] == 0.0
    assert_equal(weights(engine), before)


def test_a_frozen_model_keeps_neither_gradients_nor_optimizer() -> None:
    engine = build(frozen=True)
    assert engine.optimizer is None and not any(p.requires_grad for p in engine.module.parameters())
    assert engine.forward(BATCH, ALL)["log_probs"].shape == (6, 4)
    with pytest.raises(RuntimeError, match="frozen"):
        engine.forward_backward(BATCH, likelihood, 1.0, ALL)
    with pytest.raises(RuntimeError, match="frozen"):
        engine.optim_step()


def test_a_step_without_gradients_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="call forward_backward first"):
        build().optim_step()


def bf16_run() -> tuple[list[float], set[torch.dtype], set[torch.dtype]]:
    engine = build(mixed_precision=MixedPrecisionConfig(param_dtype="bf16"))
    losses = []
    for _ in range(6):
        train(engine, 1)
        losses.append(-float(engine.forward(BATCH, ALL)["log_probs"].sum()))
    dtypes = {tensor.dtype for _, tensor in engine.named_weights()}
    return losses, dtypes, {tensor.dtype for _, tensor in engine.named_weights(torch.bfloat16)}


def bf16_in_one_process() -> tuple[Any, list[dict[str, float]], list[dict[str, float]]]:
    return bf16_run(), fail_and_go_on(), bf16_steps(2)


def check_bf16_run(losses: list[float], dtypes: set[torch.dtype], cast: set[torch.dtype]) -> None:
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.6 * losses[0]
    assert dtypes == {torch.float32} and cast == {torch.bfloat16}


def test_bf16_compute_learns_keeps_fp32_weights_and_survives_errors(run_distributed: Callable[..., list[Any]]) -> None:
    # In a process of its own: mixed precision opens a process group, which would stay in this one.
    run, disturbed, undisturbed = run_distributed(bf16_in_one_process, 1)[0]
    check_bf16_run(*run)
    assert disturbed == undisturbed


def test_bf16_compute_on_two_processes(run_distributed: Callable[..., list[Any]]) -> None:
    for run in run_distributed(bf16_run, 2):
        check_bf16_run(*run)


def test_fp16_training_is_refused() -> None:
    with pytest.raises(ValueError, match="fp16.*no loss scaling.*bf16 or fp32"):
        build(mixed_precision=MixedPrecisionConfig(param_dtype="fp16"))


def test_weights_have_hugging_face_names_and_tied_ones_come_once() -> None:
    model = build_tiny_model("llama", tie_word_embeddings=True)
    engine = FSDPEngine(PolicyModel(model), FSDPConfig(), None, "cpu")
    names = [name for name, _ in engine.named_weights()]
    assert len(names) == len(set(names)) and "lm_head.weight" not in names
    assert set(names) | {"lm_head.weight"} == set(model.state_dict())


def test_on_a_cpu_there_is_nowhere_to_move() -> None:
    engine = build()
    engine.move("cpu")
    with pytest.raises(ValueError, match="cannot move to 'cuda'"):
        engine.move("cuda")


def save_everything(folder: Path) -> tuple[dict[str, Tensor], Tensor]:
    engine = build(OptimConfig(lr=1e-2, lr_warmup_steps=4))
    train(engine, 2)
    engine.save_checkpoint(folder / "checkpoint")
    engine.save_hf(folder / "hf")
    return weights(engine), engine.forward(BATCH, MicroBatching(rows=2))["log_probs"]


def load_and_go_on(folder: Path) -> tuple[dict[str, Tensor], list[dict[str, float]], dict[str, Tensor]]:
    engine = build(OptimConfig(lr=1e-2, lr_warmup_steps=4))
    engine.load_checkpoint(folder / "checkpoint")
    return weights(engine), train(engine, 2), weights(engine)


def run_on(processes: int, run_distributed: Callable[..., list[Any]], function: Callable[..., Any], *args: Any) -> Any:
    return run_distributed(function, processes, *args)[0] if processes > 1 else function(*args)


@pytest.mark.parametrize(("writers", "readers"), [(1, [2]), (2, [1, 4])])
def test_g4_a_checkpoint_loads_on_any_number_of_processes(
    writers: int, readers: list[int], run_distributed: Callable[..., list[Any]], tmp_path: Path
) -> None:
    saved, log_probs = run_on(writers, run_distributed, save_everything, tmp_path)
    assert not list(tmp_path.glob("*.unfinished"))
    through = build(OptimConfig(lr=1e-2, lr_warmup_steps=4))
    rates = [result["lr"] for result in train(through, 4)]
    for processes in readers:
        loaded, results, after = run_on(processes, run_distributed, load_and_go_on, tmp_path)
        assert_equal(loaded, saved)
        assert [result["lr"] for result in results] == rates[2:]
        for name, tensor in weights(through).items():
            torch.testing.assert_close(after[name], tensor, atol=5e-5, rtol=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert_equal(model.state_dict(), saved)
    torch.testing.assert_close(PolicyModel(model)(BATCH)["log_probs"], log_probs, atol=1e-5, rtol=0)


def test_resume_is_bit_for_bit(tmp_path: Path) -> None:
    through, first, second = build(), build(), build()
    expected = train(through, 4)
    results = train(first, 1)
    first.save_checkpoint(tmp_path / "c")
    second.load_checkpoint(tmp_path / "c")
    assert results + train(second, 3) == expected
    assert_equal(weights(second), weights(through))


def test_a_checkpoint_from_before_the_first_step(tmp_path: Path) -> None:
    fresh, again = build(), build()
    fresh.save_checkpoint(tmp_path / "c")
    again.load_checkpoint(tmp_path / "c")
    assert train(again, 2) == train(fresh, 2)


def test_an_older_checkpoint_of_that_name_is_replaced(tmp_path: Path) -> None:
    engine, again = build(), build()
    engine.save_checkpoint(tmp_path / "c")
    train(engine, 1)
    engine.save_checkpoint(tmp_path / "c")
    again.load_checkpoint(tmp_path / "c")
    assert_equal(weights(again), weights(engine))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_of_another_model_is_an_error_that_names_a_weight(tmp_path: Path) -> None:
    build().save_checkpoint(tmp_path / "c")
    wider = PolicyModel(build_tiny_model("llama", intermediate_size=96))
    with pytest.raises(ValueError, match=r"mlp.down_proj.weight has shape \(32, 64\) there and \(32, 96\) here"):
        FSDPEngine(wider, FSDPConfig(), None, "cpu").load_checkpoint(tmp_path / "c")
    shorter = PolicyModel(build_tiny_model("llama", num_hidden_layers=1))
    with pytest.raises(ValueError, match=r"layers.1.* there and none \(missing\) here"):
        FSDPEngine(shorter, FSDPConfig(), None, "cpu").load_checkpoint(tmp_path / "c")


def test_what_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no checkpoint of this engine"):
        build().load_checkpoint(tmp_path)
    build(frozen=True).save_checkpoint(tmp_path / "c")
    with pytest.raises(ValueError, match="is of a frozen model"):
        build().load_checkpoint(tmp_path / "c")
    build(frozen=True).load_checkpoint(tmp_path / "c")


def test_a_frozen_engine_can_load_the_weights_of_a_trained_one(tmp_path: Path) -> None:
    trained, frozen = build(), build(frozen=True)
    train(trained, 1)
    trained.save_checkpoint(tmp_path / "c")
    frozen.load_checkpoint(tmp_path / "c")
    assert_equal(weights(frozen), weights(trained))


def test_a_half_written_checkpoint_does_not_pass_for_one(tmp_path: Path) -> None:
    engine = build()
    engine.save_checkpoint(tmp_path / "c")
    shutil.move(tmp_path / "c", tmp_path / "c.unfinished")
    with pytest.raises(ValueError, match="is no checkpoint"):
        engine.load_checkpoint(tmp_path / "c")
    engine.save_checkpoint(tmp_path / "c")
    assert not (tmp_path / "c.unfinished").exists()


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    build().save_checkpoint(tmp_path / "c")
    shutil.copytree(tmp_path / "c", tmp_path / "cut")
    shards = (tmp_path / "cut" / "__0_0.distcp").read_bytes()
    (tmp_path / "cut" / "__0_0.distcp").write_bytes(shards[: len(shards) // 2])
    with pytest.raises(RuntimeError, match="cut is broken or incomplete .rank 0: "):
        build().load_checkpoint(tmp_path / "cut")
    metadata = (tmp_path / "c" / ".metadata").read_bytes()
    (tmp_path / "c" / ".metadata").write_bytes(metadata[: len(metadata) // 2])
    with pytest.raises(ValueError, match="c is broken: its .metadata cannot be read"):
        build().load_checkpoint(tmp_path / "c")
