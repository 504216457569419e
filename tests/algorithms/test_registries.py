"""Finding plug-ins by name and by import path."""

import pytest
import torch

from verl.algorithms.advantages import AdvantageEstimator, AdvantageInputs, get_adv_estimator, register_adv_est
from verl.algorithms.policy_losses import PolicyLossInputs, get_policy_loss, register_policy_loss
from verl.algorithms.preference_losses import PreferencePairs, get_preference_loss, register_preference_loss
from verl.config.actor_rollout_ref import ActorConfig, PolicyLossConfig
from verl.config.algorithm import AlgorithmConfig

KINDS = {
    "advantage estimator": (get_adv_estimator, register_adv_est, "gae"),
    "policy loss": (get_policy_loss, register_policy_loss, "vanilla"),
    "preference loss": (get_preference_loss, register_preference_loss, "dpo"),
}

PLUGIN = """
import torch
from verl.algorithms.advantages import AdvantageEstimator, Advantages

def halves(batch, config):
    half = 0.5 * batch.response_mask
    return Advantages(half, half, {"mine": 1.0})

needs_values = AdvantageEstimator(halves, needs_critic=True)

def scaled(inputs, config, *, scale=1.0):
    return scale * inputs.log_probs.sum(), {}

def anything(inputs, config, **options):
    return inputs.log_probs.sum() * len(options), {}

def sums(pairs, *, scale=1.0):
    return scale * (pairs.rejected - pairs.chosen).sum(), {}

number = 3
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    return str(path)


def policy_inputs():
    ones = torch.ones(1, 2)
    return PolicyLossInputs(ones, ones, ones, ones, max_length=2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_lists_the_known_and_the_nearest(kind):
    get, _, known = KINDS[kind]
    with pytest.raises(ValueError, match=f"unknown {kind} '{known}x'. Did you mean '{known}'\\? Known: .*{known}"):
        get(known + "x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_taken_and_a_name_with_a_colon_are_refused(kind):
    _, register, known = KINDS[kind]
    with pytest.raises(ValueError, match=f"{kind} '{known}' is registered already"):
        register(known)(lambda *args: None)
    with pytest.raises(ValueError, match="a name holds no colon"):
        register("a:b")(lambda *args: None)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_called_is_refused(kind, plugin):
    with pytest.raises(TypeError, match="is a int, not a function"):
        KINDS[kind][0](f"{plugin}:number")


def test_an_estimator_by_import_path(plugin):
    batch = AdvantageInputs(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    result = get_adv_estimator(f"{plugin}:halves")(batch, AlgorithmConfig())
    assert result.advantages.tolist() == [[0.5, 0]] and result.metrics == {"mine": 1}
    needy = get_adv_estimator(f"{plugin}:needs_values")
    assert isinstance(needy, AdvantageEstimator) and needy.needs_critic
    with pytest.raises(ValueError, match="'halves' needs values"):
        needy(batch, AlgorithmConfig())


def test_a_policy_loss_by_import_path_with_arguments(plugin):
    config = ActorConfig(policy_loss=PolicyLossConfig("mine", {"scale": 3.0}))
    assert get_policy_loss(f"{plugin}:scaled")(policy_inputs(), config)[0] == 6
    with pytest.raises(ValueError, match="'scaled' knows no size; known: scale"):
        get_policy_loss(f"{plugin}:scaled").check_kwargs({"size": 1})
    config = ActorConfig(policy_loss=PolicyLossConfig("mine", {"a": 1, "b": 2}))
    assert get_policy_loss(f"{plugin}:anything")(policy_inputs(), config)[0] == 4


def test_a_preference_loss_by_import_path(plugin):
    ones = torch.ones(1)
    loss, _ = get_preference_loss(f"{plugin}:sums")(PreferencePairs(ones, 3 * ones, ones, ones), scale=2.0)
    assert loss == 4


def test_a_registered_name_is_found(monkeypatch):
    from verl.algorithms.advantages import base

    monkeypatch.setattr(base, "ADVANTAGE_ESTIMATORS", dict(base.ADVANTAGE_ESTIMATORS))
    marker = object()
    register_adv_est("mine", needs_groups=True)(lambda batch, config: marker)
    found = get_adv_estimator("mine")
    assert found.needs_groups and not found.needs_critic
    batch = AdvantageInputs(torch.zeros(1, 1), torch.ones(1, 1), group_ids=torch.zeros(1))
    assert found(batch, AlgorithmConfig()) is marker
