"""Short names of algorithms."""

import pytest

from verl.algorithms.advantages import ADVANTAGE_ESTIMATORS
from verl.algorithms.policy_losses import POLICY_LOSSES
from verl.config.errors import ConfigError
from verl.config.loader import load_config
from verl.config.presets import ESTIMATOR, PRESETS
from verl.config.tree import leaves


def test_a_short_name_sets_estimator_loss_and_kl() -> None:
    config = load_config(["algorithm.name=dapo"])
    actor = config.actor_rollout_ref.actor
    assert config.algorithm.adv_estimator == "grpo" and config.algorithm.filter_groups.enable
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.28)
    assert not actor.use_kl_loss and not config.algorithm.use_kl_in_reward


def test_what_the_user_sets_stays_wherever_it_stands() -> None:
    for overrides in (["algorithm.name=grpo", "actor_rollout_ref.actor.use_kl_loss=false"],) * 2:
        overrides.reverse()
        config = load_config(overrides)
        assert config.algorithm.adv_estimator == "grpo" and not config.actor_rollout_ref.actor.use_kl_loss


def test_another_estimator_is_a_contradiction() -> None:
    with pytest.raises(ConfigError, match="name=grpo means algorithm.adv_estimator=grpo, but .*=gae is set too"):
        load_config(["algorithm.name=grpo", "algorithm.adv_estimator=gae"])


def test_another_ranking_is_a_contradiction() -> None:
    for name in ("dpo", "grpo"):
        with pytest.raises(ConfigError, match=f"name={name} means algorithm.preference.loss=.*, but .*=ipo is set too"):
            load_config([f"algorithm.name={name}", "algorithm.preference.loss=ipo"])
    config = load_config(["algorithm.name=dpo", "algorithm.preference.loss=dpo", "algorithm.adv_estimator=grpo"])
    assert config.algorithm.preference.loss == "dpo"


def test_a_short_name_and_its_critic() -> None:
    """What `algorithm.name` says about critic and samples is checked with the needs of its estimator."""
    from verl.trainer.checks import checked

    keys = ["actor_rollout_ref.model.path=/m", "data.train_files=x", "trainer.test_freq=-1"]
    assert checked(load_config([*keys, "algorithm.name=ppo"])).critic.enable is True
    grpo = [*keys, "algorithm.name=grpo", "actor_rollout_ref.rollout.n=4"]
    assert checked(load_config(grpo)).critic.enable is False
    with pytest.raises(ConfigError, match="critic.enable=True, but algorithm.adv_estimator=grpo uses no values"):
        checked(load_config([*grpo, "critic.enable=true"]))
    with pytest.raises(ConfigError, match="compares the samples of a prompt .*n=1: every advantage would be 0"):
        checked(load_config([*grpo, "actor_rollout_ref.rollout.n=1"]))


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="algorithm.name=gppo: expected one of ppo, grpo"):
        load_config(["algorithm.name=gppo"])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_names_what_exists(name: str) -> None:
    preset = PRESETS[name]
    assert set(preset) <= set(leaves())
    assert preset[ESTIMATOR] in ADVANTAGE_ESTIMATORS
    assert load_config([f"algorithm.name={name}"]).actor_rollout_ref.actor.policy_loss.loss_mode in POLICY_LOSSES
