"""Each policy loss against numbers worked out by hand."""

import math

import pytest
import torch

from verl.algorithms.policy_losses import PolicyLossInputs, get_policy_loss
from verl.config.actor_rollout_ref import ActorConfig, PolicyLossConfig
from verl.utils.metrics import metric_values


def tokens(ratios, advantages, mask=None, selected=None, weights=None, log_probs=None):
    """Rows of tokens with these ratios p / p_old. log p is -1 unless given."""
    ratios = torch.tensor(ratios)
    log_probs = torch.full_like(ratios, -1.0) if log_probs is None else torch.tensor(log_probs)
    mask = torch.ones_like(ratios) if mask is None else torch.tensor(mask)
    return PolicyLossInputs(
        log_probs=log_probs.requires_grad_(),
        old_log_probs=log_probs.detach() - ratios.log(),
        advantages=torch.tensor(advantages),
        response_mask=mask,
        max_length=8,
        weights=None if weights is None else torch.tensor(weights),
        selected=None if selected is None else torch.tensor(selected),
    )


def run(name, inputs, agg="token-sum", kwargs=None, **config):
    """(loss sum, its gradient on log p, metrics)."""
    config = ActorConfig(policy_loss=PolicyLossConfig(name, kwargs or {}), loss_agg_mode=agg, **config)
    loss, metrics = get_policy_loss(name)(inputs, config)
    loss.backward()
    return loss.item(), inputs.log_probs.grad.flatten().tolist(), metric_values(metrics)


def test_vanilla_by_hand():
    # ratio:           1.1 inside   1.5 clipped   0.5 not      0.5 clipped  5: dual clip
    inputs = tokens([[1.1, 1.5, 0.5, 0.5, 5.0]], [[1.0, 1.0, 1.0, -1.0, -1.0]])
    loss, gradient, metrics = run("vanilla", inputs)
    assert loss == pytest.approx(-1.1 - 1.2 - 0.5 + 0.8 + 3.0)
    assert gradient == pytest.approx([-1.1, 0, -0.5, 0, 0])
    assert metrics["pg_clipfrac"] == pytest.approx(2 / 5)
    assert metrics["pg_clipfrac_lower"] == pytest.approx(1 / 5)
    assert metrics["ratio_mean"] == pytest.approx(8.6 / 5)
    assert metrics["ratio_max"] == pytest.approx(5) and metrics["ratio_min"] == pytest.approx(0.5)
    assert metrics["ppo_kl"] == pytest.approx(-math.log(1.1 * 1.5 * 0.5 * 0.5 * 5) / 5)


def test_vanilla_with_a_range_of_its_own_on_each_side():
    inputs = tokens([[1.25, 1.5, 0.85]], [[1.0, 1.0, -1.0]])
    loss, gradient, _ = run("vanilla", inputs, clip_ratio_low=0.1, clip_ratio_high=0.28)
    assert loss == pytest.approx(-1.25 - 1.28 + 0.9)
    assert gradient == pytest.approx([-1.25, 0, 0])


def test_vanilla_dual_clip_bound_is_its_own_key():
    assert run("vanilla", tokens([[5.0]], [[-2.0]]), clip_ratio_c=4.0)[0] == pytest.approx(8)
    with pytest.raises(ValueError, match="clip_ratio_c must be above 1, got 1.0"):
        run("vanilla", tokens([[1.0]], [[1.0]]), clip_ratio_c=1.0)
    with pytest.raises(ValueError, match="must not be negative, got -0.1, 0.2"):
        run("vanilla", tokens([[1.0]], [[1.0]]), clip_ratio_low=-0.1)


def test_gspo_by_hand():
    # s = sqrt(1.21 * 1) = 1.1 for the first response; sqrt(0.25) = 0.5, clipped, for the second.
    inputs = tokens([[1.21, 1.0], [0.25, 1.0]], [[1.0, 1.0], [-1.0, -1.0]])
    loss, gradient, metrics = run("gspo", inputs)
    assert loss == pytest.approx(2 * -1.1 + 2 * 0.8)
    assert gradient == pytest.approx([-1.1, -1.1, 0, 0])
    assert metrics["pg_clipfrac"] == 0.5
    assert metrics["ratio_max"] == pytest.approx(1.1) and metrics["ratio_min"] == pytest.approx(0.5)


def test_geo_mean_by_hand():
    # log r is clipped to at most .2: mean of (.2, .1) is .15. The second response, A = -2, to at least -.2.
    log_ratios = [[0.4, 0.1], [-0.5, 0.3]]
    inputs = tokens([[math.exp(x) for x in row] for row in log_ratios], [[1.0, 1.0], [-2.0, -2.0]])
    loss, gradient, metrics = run("geo_mean", inputs, agg="seq-mean-token-mean")
    first, second = math.exp(0.15), math.exp(0.05)
    assert loss == pytest.approx(-first + 2 * second)
    assert gradient == pytest.approx([0, -first / 2, 0, second], abs=1e-6)
    assert metrics["pg_clipfrac"] == 0.5


def test_cispo_by_hand():
    inputs = tokens([[1.5, 0.5, 1.1]], [[1.0, 2.0, -1.0]])
    loss, gradient, metrics = run("cispo", inputs)
    assert gradient == pytest.approx([-1.2, -1.6, 1.1])  # weight clipped, no gradient lost
    assert loss == pytest.approx(1.2 + 1.6 - 1.1)  # log p is -1
    assert metrics["pg_clipfrac"] == metrics["pg_clipfrac_lower"] == pytest.approx(1 / 3)


def test_sapo_by_hand():
    inputs = tokens([[1.0, 2.0, 2.0]], [[1.0, 1.0, -1.0]])
    loss, gradient, _ = run("sapo", inputs, kwargs={"tau_pos": 1.0, "tau_neg": 2.0})
    one, two = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-2))
    assert loss == pytest.approx(-4 * 0.5 - 4 * one + 2 * two)
    # d/dlog r of (4 / tau) sigmoid(tau (r - 1)) is 4 sigmoid (1 - sigmoid) r
    assert gradient == pytest.approx([-1.0, -8 * one * (1 - one), 8 * two * (1 - two)])
    with pytest.raises(ValueError, match="tau_pos and tau_neg must be above 0"):
        run("sapo", tokens([[1.0]], [[1.0]]), kwargs={"tau_neg": 0.0})


@pytest.mark.parametrize("name", ["reinforce", "gpg"])
def test_reinforce_by_hand(name):
    loss, gradient, metrics = run(name, tokens([[1.0, 9.0]], [[2.0, -3.0]]))
    assert loss == pytest.approx(2 - 3)
    assert gradient == [-2, 3]
    assert metrics["ratio_max"] == pytest.approx(9)


def test_clip_cov_drops_the_gradient_of_selected_tokens():
    inputs = tokens([[1.1, 1.1, 1.5]], [[1.0, 1.0, 1.0]], selected=[[False, True, False]])
    loss, gradient, metrics = run("clip_cov", inputs)
    assert loss == pytest.approx(-1.1 - 1.2)
    assert gradient == pytest.approx([-1.1, 0, 0])
    assert metrics["clip_cov_frac"] == pytest.approx(1 / 3)


def test_kl_cov_holds_back_selected_tokens():
    inputs = tokens([[2.0, 2.0, 0.5]], [[1.0, 1.0, 1.0]], selected=[[False, True, True]])
    loss, gradient, metrics = run("kl_cov", inputs, kwargs={"ppo_kl_coef": 0.5})
    assert loss == pytest.approx(-2 - 2 - 0.5 + 0.5 * 2 * math.log(2))
    assert gradient == pytest.approx([-2.0, -2.0 + 0.5, -0.5 - 0.5])
    assert metrics["kl_cov_frac"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.0, [0, 0, 0, 1, 0]), (0.25, [0, 0, 0, 1, 0]), (0.5, [1, 0, 0, 1, 0])]
)
def test_kl_cov_selects_the_largest_covariance_of_the_whole_batch(fraction, expected):
    # Less their means (-2 and 1), log p is 1, -1, 1, -1 and A is 2, 0, 1, -3: covariances 2, 0, 1, 3.
    # The fifth token is masked.
    inputs = tokens(
        [[1.0] * 5], [[3.0, 1.0, 2.0, -2.0, 1e9]], [[1, 1, 1, 1, 0]], log_probs=[[-1.0, -3.0, -1.0, -3.0, 9.0]]
    )
    config = ActorConfig(policy_loss=PolicyLossConfig("kl_cov", {"kl_cov_ratio": fraction}))
    assert get_policy_loss("kl_cov").select(inputs, config, seed=0).int().tolist() == [expected]


def test_clip_cov_draws_between_the_bounds_and_repeats_for_a_seed():
    loss = get_policy_loss("clip_cov")
    generator = torch.Generator().manual_seed(0)
    log_probs, advantages = torch.randn(2, 20, 10, generator=generator)
    mask = torch.ones(20, 10)
    inputs = PolicyLossInputs(log_probs, log_probs, advantages, mask, max_length=10)
    config = ActorConfig(
        policy_loss=PolicyLossConfig("clip_cov", {"clip_cov_ratio": 0.05, "clip_cov_lb": 0.1, "clip_cov_ub": 1.0})
    )
    picked = loss.select(inputs, config, seed=1)
    covariance = (log_probs - log_probs.mean()) * (advantages - advantages.mean())
    assert picked.sum() == 10  # 5% of 200
    assert (covariance[picked] > 0.1).all() and (covariance[picked] < 1.0).all()
    assert torch.equal(picked, loss.select(inputs, config, seed=1))
    assert not torch.equal(picked, loss.select(inputs, config, seed=2))
    wide = ActorConfig(policy_loss=PolicyLossConfig("clip_cov", {"clip_cov_lb": 90.0, "clip_cov_ub": 91.0}))
    assert loss.select(inputs, wide, seed=1).sum() == 0  # no candidate, nothing drawn


def test_selecting_is_only_for_losses_that_choose():
    assert get_policy_loss("vanilla").select(tokens([[1.0]], [[1.0]]), ActorConfig(), seed=0) is None
    with pytest.raises(ValueError, match="'kl_cov' needs `selected`: get it once, for the whole batch"):
        run("kl_cov", tokens([[1.0]], [[1.0]]))
    with pytest.raises(ValueError, match="clip_cov_ratio is a fraction of tokens, from 0 to 1, got 2"):
        config = ActorConfig(policy_loss=PolicyLossConfig("clip_cov", {"clip_cov_ratio": 2}))
        get_policy_loss("clip_cov").select(tokens([[1.0]], [[1.0]]), config, seed=0)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", [-1, -1, -1, -4]),
        ("token-sum", [-1, -1, -1, -4]),
        ("seq-mean-token-sum", [-1, -1, -1, -4]),
        ("seq-mean-token-mean", [-1 / 3, -1 / 3, -1 / 3, -4]),
        ("seq-mean-token-sum-norm", [-1 / 8, -1 / 8, -1 / 8, -4 / 8]),
    ],
)
def test_the_aggregation_mode_is_obeyed(mode, expected):
    inputs = tokens([[1.0, 1.0, 1.0], [1.0, 7.0, 7.0]], [[1.0] * 3, [4.0] * 3], mask=[[1, 1, 1], [1, 0, 0]])
    _, gradient, _ = run("vanilla", inputs, agg=mode)
    assert [gradient[i] for i in (0, 1, 2, 3)] == pytest.approx(expected)


def test_importance_weights_multiply_the_token_losses_and_carry_no_gradient():
    inputs = tokens([[1.0, 1.0, 1.0]], [[1.0, 1.0, 1.0]], mask=[[1, 1, 0]], weights=[[0.5, 2.0, float("nan")]])
    inputs.weights.requires_grad_()
    loss, gradient, _ = run("vanilla", inputs)
    assert loss == pytest.approx(-2.5) and gradient == [-0.5, -2, 0]
    assert inputs.weights.grad is None


def test_unknown_keyword_is_named_and_the_known_listed():
    with pytest.raises(ValueError, match="'sapo' knows no tau; known: tau_pos, tau_neg"):
        run("sapo", tokens([[1.0]], [[1.0]]), kwargs={"tau": 2.0})
    with pytest.raises(ValueError, match="'vanilla' knows no clip; known: none"):
        get_policy_loss("vanilla").check_kwargs({"clip": 1})
