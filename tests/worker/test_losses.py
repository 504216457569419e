"""What actor and critic minimise, with numbers to check by hand."""

import pytest
import torch
from tensordict import TensorDict

from verl.config import ActorConfig, CriticConfig, PolicyLossConfig
from verl.utils.metrics import metric_values
from verl.worker.losses import actor_loss, critic_loss

NAN = float("nan")


def batch(**columns: list[list[float]]) -> TensorDict:
    """One response of two tokens, and garbage under a mask of 0."""
    tensors = {name: torch.tensor(rows) for name, rows in columns.items()}
    return TensorDict({"response_mask": torch.tensor([[1, 1, 0]]), **tensors}, batch_size=1)


ACTOR_BATCH = batch(old_log_probs=[[-1.0, -2.0, NAN]], advantages=[[2.0, -1.0, NAN]], ref_log_probs=[[-1.5, -1.0, NAN]])


def reinforce(**config: object) -> ActorConfig:
    return ActorConfig(policy_loss=PolicyLossConfig("reinforce"), **config)  # type: ignore[arg-type]


def test_policy_entropy_and_kl_add_up() -> None:
    config = reinforce(
        loss_agg_mode="token-sum", entropy_coeff=0.1, use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type="k2"
    )
    outputs = {
        "log_probs": torch.tensor([[-1.0, -2.0, NAN]], requires_grad=True),
        "entropy": torch.tensor([[0.5, 1.5, NAN]], requires_grad=True),
    }
    loss, metrics = actor_loss(config, max_length=8)(outputs, ACTOR_BATCH)
    loss.backward()
    # -A log p is 2 and -2; entropy 2 in all; k2 is .125 and .5
    assert loss.item() == pytest.approx(0 - 0.1 * 2 + 0.5 * 0.625)
    assert outputs["log_probs"].grad.tolist() == [[-2 + 0.5 * 0.5, 1 + 0.5 * -1, 0]]  # type: ignore[union-attr]
    assert outputs["entropy"].grad.flatten().tolist() == pytest.approx([-0.1, -0.1, 0])  # type: ignore[union-attr]
    found = metric_values(metrics)
    assert found["actor/entropy"] == pytest.approx(1.0) and found["actor/kl_loss"] == pytest.approx(0.3125)
    assert found["actor/pg_loss"] == pytest.approx(0) and found["actor/loss"] == pytest.approx(0.1125)


@pytest.mark.parametrize(
    ("mode", "share"),
    [
        ("token-mean", 1.0),
        ("token-sum", 1.0),
        ("seq-mean-token-sum", 1.0),
        ("seq-mean-token-mean", 0.5),
        ("seq-mean-token-sum-norm", 1 / 8),
    ],
)
def test_all_three_parts_are_aggregated_alike(mode: str, share: float) -> None:
    outputs = {"log_probs": torch.tensor([[-1.0, -2.0, NAN]]), "entropy": torch.tensor([[0.5, 1.5, NAN]])}
    config = reinforce(loss_agg_mode=mode, entropy_coeff=0.1, use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type="k2")
    loss, _ = actor_loss(config, max_length=8)(outputs, ACTOR_BATCH)
    assert loss.item() == pytest.approx(share * 0.1125)


def test_what_is_off_is_not_computed() -> None:
    outputs = {"log_probs": torch.tensor([[-1.0, -2.0, NAN]])}
    loss, metrics = actor_loss(reinforce(loss_agg_mode="token-sum"), 8)(outputs, ACTOR_BATCH.exclude("ref_log_probs"))
    assert loss == 0 and "actor/kl_loss" not in metrics and "actor/entropy" not in metrics


def test_rollout_weights_weigh_the_policy_loss_alone() -> None:
    weighted = ACTOR_BATCH.clone()
    weighted["rollout_weights"] = torch.tensor([[0.5, 2.0, NAN]])
    config = reinforce(loss_agg_mode="token-sum", use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type="k2")
    loss, _ = actor_loss(config, 8)({"log_probs": torch.tensor([[-1.0, -2.0, NAN]])}, weighted)
    assert loss.item() == pytest.approx(0.5 * 2 + 2.0 * -2 + 0.5 * 0.625)


def test_the_critics_loss() -> None:
    columns = batch(values=[[1.0, 1.0, NAN]], returns=[[0.0, 0.0, NAN]])
    outputs = {"values": torch.tensor([[3.0, 1.2, NAN]], requires_grad=True)}
    loss, metrics = critic_loss(CriticConfig(cliprange_value=0.5), max_length=8)(outputs, columns)
    loss.backward()
    assert loss.item() == pytest.approx(4.5 + 0.72)
    assert outputs["values"].grad.flatten().tolist() == pytest.approx([3.0, 1.2, 0])  # type: ignore[union-attr]
    found = metric_values(metrics)
    assert found["critic/vf_loss"] == pytest.approx(5.22 / 2) and found["critic/vpred_mean"] == pytest.approx(2.1)
