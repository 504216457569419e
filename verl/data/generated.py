"""Prompts from the generators of the package reasoning-gym (`pip install reasoning-gym`)."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl

from verl.data.rows import Row, check_present, values_of
from verl.data.sources import GENERATED

_DEFAULT_SIZE = 1000


class GeneratedRows:
    """`reasoning_gym:<generator>?size=1000&seed=1&<its options>`: row i is the generator's entry i.

    Raises ValueError for an unknown generator or option, and without the package.
    """

    def __init__(self, name: str, required: Sequence[str] = ()) -> None:
        self._name = name
        self._required = tuple(required)
        generator, _, options = name.removeprefix(GENERATED).partition("?")
        self._generator = generator
        settings: dict[str, Any] = {"size": _DEFAULT_SIZE, "seed": 0}
        settings |= {key: _value(text) for key, text in parse_qsl(options, keep_blank_values=True)}
        try:
            import reasoning_gym
        except ImportError as error:
            raise ValueError(f"{name} needs the package reasoning-gym: pip install reasoning-gym") from error
        try:
            self._entries = reasoning_gym.create_dataset(generator, **settings)
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueError(f"{name}: {error}") from error
        for column in required:
            check_present(column, self[0], name)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, row: int) -> Row:
        entry = self._entries[row]
        return {
            "data_source": f"reasoning_gym/{self._generator}",
            "prompt": [{"role": "user", "content": entry["question"]}],
            "ability": "reasoning",
            "reward_model": {"style": "rule", "ground_truth": entry["answer"]},
            "extra_info": {"index": row, "entry": entry},
        }

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return values_of(self, names)

    def place(self, row: int) -> str:
        return f"{self._name}, entry {row}"

    def __reduce__(self) -> tuple[Any, ...]:
        return GeneratedRows, (self._name, self._required)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
