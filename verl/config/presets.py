"""Short names of algorithms: `algorithm.name` sets estimator, loss and KL route.

A key that the user sets as well keeps the user's value, but for those that say what is learnt (`IDENTITY`): with
another value there, it is another algorithm.
"""

from typing import Any

ESTIMATOR = "algorithm.adv_estimator"
RANKING = "algorithm.preference.loss"
IDENTITY = (ESTIMATOR, RANKING)

_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
_AGG = "actor_rollout_ref.actor.loss_agg_mode"
_LOW, _HIGH = "actor_rollout_ref.actor.clip_ratio_low", "actor_rollout_ref.actor.clip_ratio_high"
_KL_IN_REWARD = {"algorithm.use_kl_in_reward": True, "actor_rollout_ref.actor.use_kl_loss": False}
_KL_LOSS = {"algorithm.use_kl_in_reward": False, "actor_rollout_ref.actor.use_kl_loss": True}
_NO_KL = {"algorithm.use_kl_in_reward": False, "actor_rollout_ref.actor.use_kl_loss": False}

PRESETS: dict[str, dict[str, Any]] = {
    "ppo": {ESTIMATOR: "gae", **_KL_IN_REWARD},
    "grpo": {ESTIMATOR: "grpo", **_KL_LOSS, "actor_rollout_ref.actor.kl_loss_type": "low_var_kl"},
    "dr_grpo": {
        ESTIMATOR: "grpo",
        "algorithm.norm_adv_by_std_in_grpo": False,
        _AGG: "seq-mean-token-sum-norm",
        **_NO_KL,
    },
    "gspo": {ESTIMATOR: "grpo", _LOSS: "gspo", _AGG: "seq-mean-token-mean", _LOW: 3e-4, _HIGH: 4e-4, **_NO_KL},
    "dapo": {
        ESTIMATOR: "grpo",
        _AGG: "token-mean",
        _LOW: 0.2,
        _HIGH: 0.28,
        "algorithm.filter_groups.enable": True,
        **_NO_KL,
    },
    "rloo": {ESTIMATOR: "rloo", **_KL_IN_REWARD},
    "reinforce_plus_plus": {ESTIMATOR: "reinforce_plus_plus", **_KL_IN_REWARD},
    "reinforce_plus_plus_baseline": {ESTIMATOR: "reinforce_plus_plus_baseline", **_KL_LOSS},
    "remax": {ESTIMATOR: "remax", **_KL_IN_REWARD},
    "opo": {ESTIMATOR: "opo", **_NO_KL},
    "grpo_passk": {ESTIMATOR: "grpo_passk", **_NO_KL},
    "gdpo": {ESTIMATOR: "gdpo", **_NO_KL},
    "gpg": {ESTIMATOR: "gpg", _LOSS: "gpg", **_NO_KL},
    # Samples are ranked within their prompt: no critic, no KL besides the reference in the loss.
    **{name: {ESTIMATOR: "grpo", RANKING: name, **_NO_KL} for name in ("dpo", "ipo", "simpo", "kto")},
}


def preset_problems(name: str, chosen: dict[str, Any]) -> list[str]:
    """What is wrong with `algorithm.name=name` beside the keys that the user set (`chosen`, by full path)."""
    if name not in PRESETS:
        return [f"algorithm.name={name}: expected one of {', '.join(PRESETS)}"]
    return [
        f"algorithm.name={name} means {key}={PRESETS[name].get(key, 'null')}, but {key}={chosen[key]} is set too: "
        "leave one of them out"
        for key in IDENTITY
        if key in chosen and chosen[key] != PRESETS[name].get(key)
    ]
