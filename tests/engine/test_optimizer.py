import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from verl.config import OptimConfig
from verl.engine.fsdp.optimizer import LearningRate, build_adamw, global_norm, scale_gradients


def rates(config: OptimConfig, steps: int, total: int | None = None) -> list[float]:
    schedule = LearningRate(config, total)
    return [schedule.at(step) for step in range(1, steps + 1)]


def test_g7_warm_up() -> None:
    assert rates(OptimConfig(lr=1.0, lr_warmup_steps=4), 5) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_warm_up_as_a_share_of_all_steps() -> None:
    assert rates(OptimConfig(lr=1.0, lr_warmup_steps_ratio=0.2), 3, total=10) == [0.5, 1.0, 1.0]


def test_linear_decay_ends_one_step_after_the_last() -> None:
    config = OptimConfig(lr=1.0, lr_scheduler_type="linear")
    assert rates(config, 5, total=4) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    config = OptimConfig(lr=1.0, lr_scheduler_type="linear", lr_warmup_steps=2, min_lr_ratio=0.1)
    assert rates(config, 5, total=4) == pytest.approx([0.5, 1.0, 0.7, 0.4, 0.1])


def test_cosine_decay() -> None:
    config = OptimConfig(lr=2.0, lr_scheduler_type="cosine")
    expected = [2.0, 1 + math.cos(math.pi / 4), 1.0, 1 - math.cos(math.pi / 4), 0.0]
    assert rates(config, 5, total=4) == pytest.approx(expected)


@pytest.mark.parametrize("kwargs", [{"lr_scheduler_type": "cosine"}, {"lr_warmup_steps_ratio": 0.1}])
def test_a_decay_needs_the_number_of_steps(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set trainer.total_training_steps"):
        LearningRate(OptimConfig(**kwargs), None)


def test_vectors_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = build_adamw(model.parameters(), OptimConfig(lr=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if name == "0.weight" else 1.0
        torch.testing.assert_close(p.detach(), before[name] * factor)


def test_one_adamw_step_by_hand() -> None:
    # The first step moves each weight by lr * sign(gradient), after decay: 2 * (1 - 0.1 * 0.01) - 0.1 = 1.898
    weight = nn.Parameter(torch.tensor([[2.0]]))
    optimizer = build_adamw([weight], OptimConfig(lr=0.1, weight_decay=0.01))
    weight.grad = torch.tensor([[3.0]])
    optimizer.step()
    assert weight.item() == pytest.approx(1.898)


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        build_adamw(nn.Linear(1, 1).requires_grad_(False).parameters(), OptimConfig())


def test_global_norm_and_scaling() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    assert global_norm(gradients) == 5.0
    scale_gradients(gradients, 0.5)
    assert global_norm(gradients) == 2.5
    assert not math.isfinite(global_norm([torch.tensor([1.0]), torch.tensor([math.nan])]))
    assert not math.isfinite(global_norm([torch.tensor([math.inf])]))


def norm_over_meshes() -> float:
    """3 sharded over all four processes, 4 sharded over pairs of them, 12 the same on all."""
    whole = init_device_mesh("cpu", (4,))
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))["b"]
    three = torch.zeros(8)
    three[5] = 3
    gradients = [
        distribute_tensor(three, whole, [Shard(0)]),
        distribute_tensor(torch.tensor([0.0, 4.0]), pairs, [Shard(0)]),
        torch.tensor([12.0]),
    ]
    norm = global_norm(gradients)
    scale_gradients(gradients, 2.0)
    assert global_norm(gradients) == 2 * norm
    return norm


def test_the_norm_covers_gradients_on_different_meshes(run_distributed: Callable[..., list[Any]]) -> None:
    assert run_distributed(norm_over_meshes, 4) == [13.0] * 4
