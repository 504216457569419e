"""The tables of docs/algorithms.md, from what the plug-ins say of themselves.

python -m verl.algorithms.table > docs/algorithms.md
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from verl.algorithms.advantages import ADVANTAGE_ESTIMATORS
from verl.algorithms.aggregation import AGGREGATION_MODES
from verl.algorithms.kl import KL_KINDS
from verl.algorithms.policy_losses import POLICY_LOSSES
from verl.algorithms.preference_losses import PREFERENCE_LOSSES, LabelledResponses
from verl.algorithms.registry import keywords
from verl.config.presets import PRESETS

_HEAD = """# Algorithms

This page is generated: `python -m verl.algorithms.table > docs/algorithms.md`.

Every algorithm is a function found by name. Your own is found by where it lives, `my_pkg.my_module:fn` or
`/folder/file.py:fn`, in the same config key; or register it under a name with `register_adv_est`,
`register_policy_loss` or `register_preference_loss`. The docstring of each function gives shapes, masks and sources.

Notation: r = p / p_old, the ratio of a token's probability now to that before the step's updates; A its advantage; R a
response's score; V values; low and high the clip ranges. Means and deviations over a prompt's samples leave out
responses without a valid token; a response alone in its group gets the advantage 0, and the metric `groups_of_one`
counts it."""


@dataclass(frozen=True)
class Row:
    """One plug-in in a table."""

    name: str
    equation: str
    paper: str
    needs: str
    arguments: str


def adv_estimator_rows() -> Iterator[Row]:
    """`algorithm.adv_estimator`."""
    for name, estimator in sorted(ADVANTAGE_ESTIMATORS.items()):
        needs = {
            "critic": estimator.needs_critic,
            "groups (n > 1)": estimator.needs_groups,
            "greedy baseline": estimator.needs_greedy_baseline,
            "single rewards": estimator.needs_reward_components,
        }
        yield Row(name, estimator.equation, estimator.paper, _listed(what for what, so in needs.items() if so), "")


def policy_loss_rows() -> Iterator[Row]:
    """`actor.policy_loss.loss_mode`."""
    for name, loss in sorted(POLICY_LOSSES.items()):
        needs = "a choice on the whole batch" if loss.select_fn else "-"
        yield Row(name, loss.equation, loss.paper, needs, _arguments(loss.fn))


def preference_loss_rows() -> Iterator[Row]:
    """Losses that learn from preferences."""
    for name, loss in sorted(PREFERENCE_LOSSES.items()):
        data = "labelled responses" if loss.takes is LabelledResponses else "pairs"
        needs = _listed([data, "reference"] if loss.needs_reference else [data])
        yield Row(name, loss.equation, loss.paper, needs, _arguments(loss.fn))


def markdown() -> str:
    """The whole of docs/algorithms.md."""
    parts = [
        _HEAD,
        "## Short names: `algorithm.name`",
        "A short name sets the keys below together; one that you set as well keeps your value. Here they are written\n"
        "without `algorithm.` and `actor_rollout_ref.`. Whether there is a critic follows from the estimator. Keys\n"
        "that are not listed keep their defaults: `grpo` averages over tokens, as most of its runs do, where its\n"
        "paper averages over the tokens of a response first (`actor.loss_agg_mode=seq-mean-token-mean`).",
        _preset_table(),
        "## Advantage estimators: `algorithm.adv_estimator`",
        _table(adv_estimator_rows(), "Needs"),
        "## Policy losses: `actor_rollout_ref.actor.policy_loss.loss_mode`",
        "Arguments go into `actor_rollout_ref.actor.policy_loss.loss_kwargs`.",
        _table(policy_loss_rows(), "Needs", "Arguments"),
        "## Preference losses: `algorithm.name` of `python -m verl.trainer.main_preference`",
        "The arguments are keys of `algorithm` (`gamma` of simpo is `algorithm.simpo_gamma`); those of a loss of your\n"
        "own go into `algorithm.loss_kwargs`.",
        _table(preference_loss_rows(), "Needs", "Arguments"),
        "## Other names",
        f"* `actor_rollout_ref.actor.loss_agg_mode`: {_code(AGGREGATION_MODES)}.",
        f"* `algorithm.kl_penalty`, `actor_rollout_ref.actor.kl_loss_type`: {_code(KL_KINDS)} (see\n"
        "  `verl.algorithms.kl.kl_estimate`; `+` keeps the value and takes the gradient of k2).",
    ]
    return "\n\n".join(parts) + "\n"


def _preset_table() -> str:
    """A Markdown table of `algorithm.name` and what it sets."""
    lines = ["| Name | Sets |", "| --- | --- |"]
    for name, keys in PRESETS.items():
        settings = (
            f"`{key.removeprefix('algorithm.').removeprefix('actor_rollout_ref.')}={value}`"
            for key, value in keys.items()
        )
        lines.append(f"| `{name}` | {_listed(settings)} |")
    return "\n".join(lines)


def _table(rows: Iterable[Row], *extra: str) -> str:
    """A Markdown table of name, equation and paper, and of the columns named in `extra`."""
    lines = [" | ".join(["Name", "Equation", *extra, "Source"]), " | ".join(["---"] * (3 + len(extra)))]
    for row in rows:
        # A bar inside a cell would end it.
        equation = f"`{row.equation}`".replace("|", "\\|")
        columns = {"Needs": row.needs, "Arguments": row.arguments}
        lines.append(" | ".join([f"`{row.name}`", equation, *(columns[name] for name in extra), row.paper]))
    return "\n".join(f"| {line} |" for line in lines)


def _arguments(fn: Callable[..., Any]) -> str:
    return _listed(f"`{name}={default}`" for name, default in keywords(fn).items())


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "-"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(markdown(), end="")
