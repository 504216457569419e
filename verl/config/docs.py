"""`python -m verl.config.docs > docs/config.md`: the reference of all keys, from the dataclasses and the tables."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from typing import Any

from verl.config.aliases import KEY_ALIASES
from verl.config.ppo import PPOConfig
from verl.config.ranges import range_of
from verl.config.tree import Leaf, leaves
from verl.config.unsupported import UNSET, UNSUPPORTED, Unsupported

INTRODUCTION = """\
# Configuration

<!-- Written by `python -m verl.config.docs`. Change the dataclasses in verl/config, not this file. -->

Keys are set on the command line (`key=value`) or in a YAML file (`--config`), and the command line wins. An unknown
key is an error that names the nearest one; sizes that do not fit together are refused before a model loads.
`--dry-run` prints the config with everything filled in.

Batch sizes count prompts, unless a name says otherwise: a step has `data.train_batch_size` x
`actor_rollout_ref.rollout.n` samples. Sizes that end in `_per_gpu` count what one process handles at once.
"""

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
    meanings = {field.name: field.metadata["doc"] for field in fields(PPOConfig)}
    parts = [INTRODUCTION]
    for section, members in groupby(leaves().values(), key=lambda leaf: leaf.path.partition(".")[0]):
        parts.append(
            f"\n## `{section}`: {meanings[section]}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
        )
        parts.extend(_row(leaf) for leaf in members)
    parts.append("\n" + ELSEWHERE)
    parts.extend(f"| `{older}` | `{newer}` |\n" for older, newer in sorted(KEY_ALIASES.items()))
    parts.append(NOT_HERE)
    parts.extend(_unsupported_rows())
    return "".join(parts)


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
