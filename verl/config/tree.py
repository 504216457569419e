"""The config as a tree of dotted keys: every leaf with its type, default and meaning, and access to it by name."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from verl.config.ppo import PPOConfig


@dataclass(frozen=True)
class Leaf:
    """One key. `annotation` is its type, `default` what it is when nobody sets it."""

    path: str
    annotation: Any
    default: Any
    doc: str

    @property
    def is_open(self) -> bool:
        """Whether users choose the keys below this one themselves."""
        return get_origin(self.annotation) is dict

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is list

    @property
    def is_optional(self) -> bool:
        return type(None) in _alternatives(self.annotation) or self.annotation is Any

    @property
    def kind(self) -> Any:
        """The type without null."""
        (kind,) = [part for part in _alternatives(self.annotation) if part is not type(None)]
        return kind

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, of a key that has a closed list of them."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def type_name(self) -> str:
        """The type in words: "int or null", "one of fsdp, fsdp2", "list of str"."""
        name = _type_name(self.kind)
        return f"{name} or null" if self.is_optional else name


def leaves(root: type = PPOConfig) -> dict[str, Leaf]:
    """Every key below the dataclass `root` by its dotted name, in the order of the dataclasses."""
    return _leaves(root)


@cache
def _leaves(root: type) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in _walk(root(), "")}


def sections(root: type = PPOConfig) -> frozenset[str]:
    """Every dotted name that has keys below it."""
    parts = (path.split(".") for path in leaves(root))
    return frozenset(".".join(part[:depth]) for part in parts for depth in range(1, len(part)))


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) for every leaf of nested mappings; an empty mapping is one."""
    for key, value in nested.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def leaf_at(path: str, root: type = PPOConfig) -> Leaf | None:
    """The leaf that `path` sets: itself, or the mapping with keys of the user's own that holds it."""
    known = leaves(root)
    if path in known:
        return known[path]
    parts = path.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        parent = ".".join(parts[:depth])
        if parent in known:
            return known[parent] if known[parent].is_open else None
    return None


def value_at(config: Any, path: str) -> Any:
    """The value of a dotted key."""
    value = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _walk(section: Any, prefix: str) -> Iterator[Leaf]:
    hints = get_type_hints(type(section))
    for field in fields(section):
        path, value = prefix + field.name, getattr(section, field.name)
        if is_dataclass(value):
            yield from _walk(value, f"{path}.")
        else:
            yield Leaf(path, hints[field.name], value, field.metadata["doc"])


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _type_name(kind: Any) -> str:
    origin = get_origin(kind)
    if kind is Any:
        return "str or list of str"
    if origin is Literal:
        return "one of " + ", ".join(get_args(kind))
    if origin is list:
        return f"list of {_type_name(get_args(kind)[0])}"
    if origin is dict:
        return "mapping"
    return str(kind.__name__)
