"""`python -m verl.config.docs > docs/config.md`: the reference of all keys, from the dataclasses and the tables."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from typing import Any

from verl.config.aliases import KEY_ALIASES
from verl.config.offline import RewardModelTrainingConfig, SFTConfig
from verl.config.ppo import PPOConfig
from verl.config.preference import PreferenceConfig
from verl.config.ranges import range_of
from verl.config.tree import Leaf, leaves
from verl.config.unsupported import UNSET, UNSUPPORTED, Unsupported

INTRODUCTION = """\
# Configuration

<!-- Written by `python -m verl.config.docs`. Change the dataclasses in verl/config, not this file. -->

Keys are set on the command line (`key=value`) or in a YAML file (`--config`), and the command line wins. An unknown
key is an error that names the nearest one; sizes that do not fit together are refused before a model loads.
`--dry-run` prints the config with everything filled in.

Batch sizes of a PPO run count prompts, unless a name says otherwise: a step has `data.train_batch_size` x
`actor_rollout_ref.rollout.n` samples. Sizes that end in `_per_gpu` count what one process handles at once.
"""

ROOTS: dict[str, tuple[type, str]] = {
    "main_ppo": (PPOConfig, "reinforcement learning"),
    "main_sft": (SFTConfig, "supervised fine-tuning"),
    "main_reward_model": (RewardModelTrainingConfig, "training of a reward model on pairs of answers"),
    "main_preference": (PreferenceConfig, "preference learning without rollouts: DPO, KTO and kin"),
}
"""Command (`python -m verl.trainer.<name>`) -> the root of its config, and what it does."""

KEY_HEADER = "| key | type | default | meaning |\n|---|---|---|---|\n"

ELSEWHERE = """\
## Keys of other launch scripts

Older and other names are accepted, with a line in the log:

| name | is called here |
|---|---|
"""

NOT_HERE = """\

These have no effect in this version. They are accepted, with a line in the log, when their value is one of those in
the second column, and otherwise refused. `*` stands for anything.

| key | accepted | because |
|---|---|---|
"""


def render() -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION]
    for command, (root, what) in ROOTS.items():
        parts.append(f"\n## `python -m verl.trainer.{command}`: {what}\n")
        parts.extend(_sections(root))
    parts.append("\n" + ELSEWHERE)
    parts.extend(f"| `{older}` | `{newer}` |\n" for older, newer in sorted(KEY_ALIASES.items()))
    parts.append(NOT_HERE)
    parts.extend(_unsupported_rows())
    return "".join(parts)


def _sections(root: Any) -> Iterator[str]:
    """A heading and a table for each section below `root`."""
    meanings = {field.name: field.metadata["doc"] for field in fields(root)}
    for section, members in groupby(leaves(root).values(), key=lambda leaf: leaf.path.partition(".")[0]):
        yield f"\n### `{section}`: {meanings[section]}\n\n{KEY_HEADER}"
        yield from map(_row, members)


def _row(leaf: Leaf) -> str:
    allowed = range_of(leaf.path)
    type_name = leaf.type_name if allowed is None else f"{leaf.type_name}; {allowed}"
    return f"| `{leaf.path}` | {_cell(type_name)} | `{_value(leaf.default)}` | {_cell(leaf.doc)} |\n"


def _unsupported_rows() -> Iterator[str]:
    for reason, rows in groupby(UNSUPPORTED, key=lambda row: row.reason):
        for row in rows:
            yield f"| `{row.pattern}` | {_accepted(row)} | {_cell(reason)} |\n"


def _accepted(row: Unsupported) -> str:
    if row.accepted is None:
        return "any value"
    if row.accepted is UNSET:
        return "unset"
    return ", ".join(f"`{_value(value)}`" for value in row.accepted) or "no value"


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return '""' if value == "" else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(render(), end="")
