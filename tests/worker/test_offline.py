"""The objectives of training without rollouts, on outputs written by hand, and on a tiny model in this process."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.conftest import build_tiny_model
from verl.config import FSDPConfig, OptimConfig
from verl.engine.base import MicroBatching
from verl.engine.fsdp import FSDPEngine
from verl.models.policy import PolicyModel
from verl.models.reward import RewardScorer
from verl.models.value import ValueModel
from verl.utils.metrics import metric_values
from verl.worker.objective import Objective
from verl.worker.offline import likelihood_objective, ranking_objective
from verl.worker.preference import REFERENCE, preference_objective


def rows(**columns: Any) -> TensorDict:
    tensors = {name: torch.as_tensor(value) for name, value in columns.items()}
    return TensorDict(tensors, batch_size=[len(next(iter(tensors.values())))])


def mean_loss(objective: Objective, outputs: dict[str, Any], batch: TensorDict) -> tuple[float, dict[str, float]]:
    loss, metrics = objective.loss_fn({name: torch.as_tensor(value) for name, value in outputs.items()}, batch)
    return float(loss) / float(objective.count(batch)), metric_values(metrics)


@pytest.mark.parametrize(
    ("mask", "losses", "mean"),
    [
        ([0, 0, 0, 1, 1, 1], [100.0, 100, 100, 1, 2, 6], 3.0),
        ([0, 1, 1, 1], [100.0, 1, 2, 6], 3.0),  # cut on the left to 4 tokens
        ([0, 0, 0, 1], [100.0, 100, 100, 1], 1.0),  # cut on the right
    ],
)
def test_b13_the_mean_is_over_the_answer_and_its_end_token(mask: list[int], losses: list[float], mean: float) -> None:
    log_probs = [[-loss for loss in losses]]
    found, metrics = mean_loss(likelihood_objective("train"), {"log_probs": log_probs}, rows(response_mask=[mask]))
    assert found == mean and metrics == {"train/loss": mean}


def pair(policy: tuple[float, float], ref: tuple[float, float], garbage: float = 0.0) -> tuple[dict[str, Any], Any]:
    """One pair; each half has a masked column and its log-prob in two tokens."""
    log_probs = [[[garbage, sum_ + 4, -4.0] for sum_ in policy]]
    return {"log_probs": log_probs}, rows(response_mask=[[[0, 1, 1], [0, 1, 1]]], **{REFERENCE: [list(ref)]})


@pytest.mark.parametrize("garbage", [0.0, 77.0, math.nan])
def test_c1_dpo(garbage: float) -> None:
    dpo = preference_objective("dpo", {"beta": 0.1}, "train", {})
    loss, metrics = mean_loss(dpo, *pair((-10.0, -11.0), (-12.0, -12.0), garbage))
    assert loss == pytest.approx(0.644397, abs=1e-6)
    assert metrics["train/loss"] == pytest.approx(0.644397, abs=1e-6)
    assert metrics["train/rewards/chosen"] == pytest.approx(0.2)
    assert metrics["train/rewards/rejected"] == pytest.approx(0.1)
    assert metrics["train/rewards/margins"] == pytest.approx(0.1)
    assert metrics["train/rewards/accuracies"] == 1
    assert mean_loss(dpo, *pair((-12.0, -12.0), (-12.0, -12.0)))[0] == pytest.approx(0.693147, abs=1e-6)
    smooth = preference_objective("dpo", {"beta": 0.1, "label_smoothing": 0.1}, "train", {})
    assert mean_loss(smooth, *pair((-10.0, -11.0), (-12.0, -12.0)))[0] == pytest.approx(0.654397, abs=1e-6)


def test_simpo_needs_no_reference_and_counts_tokens() -> None:
    simpo = preference_objective("simpo", {"beta": 2.0, "gamma": 0.5}, "val", {})
    outputs, batch = pair((-4.0, -7.0), (0.0, 0.0))
    loss, metrics = mean_loss(simpo, outputs, batch.exclude(REFERENCE))
    assert loss == pytest.approx(math.log1p(math.exp(-2.5)))  # 2 (-4 / 2) - 2 (-7 / 2) - 0.5 = 2.5
    assert metrics["val/rewards/margins"] == pytest.approx(3)


class TwoTokenEngine:
    """Says that every answer has log p = -1 a token."""

    def forward(self, batch: TensorDict, micro: MicroBatching, **model_kwargs: Any) -> dict[str, torch.Tensor]:
        return {"log_probs": -batch["response_mask"].float()}


def test_c2_kto_with_its_point_from_the_second_sequences() -> None:
    kto = preference_objective("kto", {"beta": 0.1}, "train", {})
    batch = rows(
        input_ids=torch.zeros(2, 2, 2, dtype=torch.long),
        attention_mask=torch.ones(2, 2, 2, dtype=torch.long),
        response_mask=torch.ones(2, 2, 2, dtype=torch.long),
        labels=[True, False],
        # The mismatched answers have log p = -2, so log-ratios .5 and -1.5; their mean is below 0.
        **{REFERENCE: [[-7.0, -2.5], [-4.0, -0.5]]},
    )
    ready = kto.prepare(TwoTokenEngine(), batch, MicroBatching())  # type: ignore[arg-type]
    assert ready["kl_point"].tolist() == [0, 0]
    loss, metrics = mean_loss_of(kto, [[-2.0, -3.0], [-2.0, -3.0]], ready, count=kto.count(batch))
    assert loss == pytest.approx((0.450166 + 0.475021) / 2, abs=1e-6)
    assert metrics["train/kl_point"] == 0 and metrics["train/rewards/accuracies"] == 1
    batch[REFERENCE][:, 1] = torch.tensor([-4.0, -3.0])  # log-ratios 2 and 1
    assert kto.prepare(TwoTokenEngine(), batch, MicroBatching())["kl_point"].tolist() == [1.5, 1.5]  # type: ignore[arg-type]


def mean_loss_of(objective: Objective, log_probs: Any, batch: TensorDict, count: Any) -> tuple[float, dict[str, float]]:
    loss, metrics = objective.loss_fn({"log_probs": torch.tensor(log_probs)}, batch)
    return float(loss) / float(count), metric_values(metrics)


def test_c3_pairs_of_scores() -> None:
    batch = rows(response_mask=[[[1], [1]], [[0], [0]]])  # the second is a pad row
    loss, metrics = mean_loss(ranking_objective("val"), {"scores": [[2.0, 0.5], [math.nan, 9.0]]}, batch)
    assert loss == pytest.approx(0.201413, abs=1e-6)
    assert metrics["val/rewards/margins"] == 1.5 and metrics["val/rewards/accuracies"] == 1


# ---- law 2, on a model ----


def pair_rows(count: int, seed: int = 0) -> TensorDict:
    """Random pairs with prompts of 1 to 3 tokens on the left and answers of 1 to 4 on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, 128, (count, 2, 7), generator=generator)
    ids[:, 1, :3] = ids[:, 0, :3]
    prompt = torch.randint(1, 4, (count, 1, 1), generator=generator).expand(count, 2, 1)
    answer = torch.randint(1, 5, (count, 2, 1), generator=generator)
    seen_prompt = torch.arange(3) >= 3 - prompt
    mask = (torch.arange(4) < answer).long()
    return rows(
        input_ids=ids,
        attention_mask=torch.cat([seen_prompt.long(), mask], -1),
        response_mask=mask,
        labels=torch.rand(count, generator=generator) < 0.5,
        **{REFERENCE: -10 * torch.rand(count, 2, generator=generator)},
    )


def gradient(
    module: Callable[[], Any], objective: Objective, batch: TensorDict, micro: MicroBatching, **model_kwargs: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    model = module()
    engine = FSDPEngine(model, FSDPConfig(), OptimConfig(), "cpu")
    ready = objective.prepare(engine, batch, micro)
    metrics = engine.forward_backward(ready, objective.loss_fn, float(objective.count(batch)), micro, **model_kwargs)
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(gradients), metric_values(metrics)


def policy() -> PolicyModel:
    return PolicyModel(build_tiny_model())


def scorer() -> RewardScorer:
    model = ValueModel(build_tiny_model().base_model)
    torch.nn.init.normal_(model.value_head.weight, generator=torch.Generator().manual_seed(0))
    return RewardScorer(model)


CUTS = [MicroBatching(rows=1), MicroBatching(rows=2), MicroBatching(max_tokens=20)]


@pytest.mark.parametrize("micro", CUTS)
@pytest.mark.parametrize("loss", ["dpo", "ipo", "simpo", "kto"])
def test_law_2_cuts_order_and_packing_change_no_preference_gradient(loss: str, micro: MicroBatching) -> None:
    batch = pair_rows(5)
    expected = gradient(policy, preference_objective(loss, {}, "train", {}), batch, MicroBatching())
    reordered = batch[torch.tensor([3, 0, 4, 2, 1])]
    packed = {"remove_padding": True}
    for kwargs in ({}, packed):
        objective = preference_objective(loss, {}, "train", kwargs)
        found = gradient(policy, objective, reordered, micro, **kwargs)
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-4)
        assert found[1] == pytest.approx(expected[1], abs=1e-5)


@pytest.mark.parametrize("micro", CUTS)
def test_law_2_of_reward_models(micro: MicroBatching) -> None:
    batch = pair_rows(5)
    expected = gradient(scorer, ranking_objective("train"), batch, MicroBatching())
    found = gradient(scorer, ranking_objective("train"), batch[torch.tensor([3, 0, 4, 2, 1])], micro)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-4)
    assert found[1] == pytest.approx(expected[1], abs=1e-5)


@pytest.mark.parametrize("micro", CUTS)
def test_law_2_of_supervised_rows_packed_or_padded(micro: MicroBatching) -> None:
    lengths = torch.tensor([[6], [3], [4]])
    seen = (torch.arange(6) < lengths).long()
    ids = torch.randint(6, 128, (3, 6), generator=torch.Generator().manual_seed(0))
    batch = rows(input_ids=ids, attention_mask=seen, response_mask=seen * torch.tensor([0, 0, 1, 1, 0, 1]))
    objective = likelihood_objective("train")
    expected = gradient(policy, objective, batch, MicroBatching())
    for packed in (False, True):
        found = gradient(policy, objective, batch, micro, remove_padding=packed)
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-4)
        assert found[1] == pytest.approx(expected[1], abs=1e-5)


def test_law_1_pad_rows_teach_nothing() -> None:
    batch = pair_rows(3)
    padded = torch.cat([batch, batch[:2]])
    padded["response_mask"][3:] = 0
    for loss in ("dpo", "kto"):
        objective = preference_objective(loss, {}, "train", {})
        expected = gradient(policy, objective, batch, MicroBatching())
        found = gradient(policy, objective, padded, MicroBatching(rows=2))
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-4)
        assert found[1] == pytest.approx(expected[1], abs=1e-5, nan_ok=True)  # kto: no answer is desirable here


def test_rows_of_two_texts_are_never_torn_apart() -> None:
    batch = pair_rows(3).select("input_ids", "attention_mask")
    scores = scorer()(batch)["scores"]
    assert scores.shape == (3, 2)
    flat = TensorDict({name: column.flatten(0, 1) for name, column in batch.items()}, batch_size=[6])
    torch.testing.assert_close(scores.flatten(), scorer()(flat)["scores"])
