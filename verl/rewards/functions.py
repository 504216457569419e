"""What a reward function may look like, and how it is called."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verl.utils.imports import import_from_path

Kind = Literal["row", "texts", "batch"]

ROW_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
TEXT_ARGUMENTS = ("prompts", "responses")
OPTIONAL_ROW_ARGUMENT = "prompt_str"
"""The prompt's text, for row functions that name it among their parameters."""


@dataclass(frozen=True)
class RewardFunction:
    """A function of a user's own, or a built-in rule, with what the manager must know of it.

    Attributes:
        fn: sync or async; what it returns is in the list below.
        name: under which its scores are logged when there are several functions.
        weight: of its scores in the sum.
        in_driver: never sent to another process, since it waits for something else (a server). One of rows limits its
            time itself: rows that wait for their turn at the server have taken none yet.

    Kinds, told apart by the signature (`kind`):
        row    `fn(data_source, solution_str, ground_truth, extra_info)`, by keyword, once a row -> a finite number, a
               number per sampled token, or a dict with either as `score`. A parameter `prompt_str` gets the prompt.
        texts  `fn(prompts, responses)` -> one of these per row; by keyword where it has parameters of these names.
        batch  `fn(batch: DataProto)` -> a tensor [B] or [B, R], or a dict with it as `reward_tensor` and
               `reward_extra_info` (name -> list of B).
    """

    fn: Callable[..., Any]
    name: str = "score"
    weight: float = 1.0
    in_driver: bool = False
    kind: Kind = field(init=False)
    wants_prompt: bool = field(init=False, default=False)
    by_keyword: bool = field(init=False, default=False)
    is_async: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", kind_of(self.fn))
        object.__setattr__(self, "wants_prompt", OPTIONAL_ROW_ARGUMENT in _parameters(self.fn))
        object.__setattr__(self, "by_keyword", _binds(inspect.signature(self.fn), TEXT_ARGUMENTS))
        object.__setattr__(self, "is_async", _is_async(self.fn))


class ImportedFunction:
    """A function known by `path:name`, so that each process imports it for itself, with keyword arguments filled in."""

    def __init__(self, path: str, keywords: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.keywords = dict(keywords or {})
        found = import_from_path(path)
        if not callable(found):
            where, _, name = path.rpartition(":")
            raise ValueError(f"{name!r} in {where} is no function but a {type(found).__name__}")
        self.fn: Callable[..., Any] = functools.partial(found, **self.keywords) if self.keywords else found
        try:
            self.__signature__ = inspect.signature(self.fn)
        except ValueError as error:
            given = ", ".join(f"{name}={value!r}" for name, value in self.keywords.items())
            where, _, name = path.rpartition(":")
            raise ValueError(
                f"{name} in {where} cannot be called with {given}: it is {name}{inspect.signature(found)}"
            ) from error
        self.__name__ = path.rpartition(":")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __reduce__(self) -> tuple[type["ImportedFunction"], tuple[str, dict[str, Any]]]:
        return ImportedFunction, (self.path, self.keywords)


def kind_of(fn: Callable[..., Any]) -> Kind:
    """Which kind of reward function `fn` is, by its signature. ValueError when it is none."""
    if not callable(fn):
        raise ValueError(f"a reward function must be a function, not a {type(fn).__name__}")
    signature = inspect.signature(fn)
    if _binds(signature, ROW_ARGUMENTS) or _binds(signature, (*ROW_ARGUMENTS, OPTIONAL_ROW_ARGUMENT)):
        return "row"
    if _binds(signature, TEXT_ARGUMENTS):
        return "texts"
    # By position, unless the names say that it is a row function that is incomplete, or takes other texts.
    if not (set(ROW_ARGUMENTS) & set(signature.parameters) or _otherwise(signature)):
        if _binds(signature, positional=1):
            return "batch"
        if _binds(signature, positional=2):
            return "texts"
    raise ValueError(
        f"{_name(fn)}{signature} is no reward function: expected fn({', '.join(ROW_ARGUMENTS)}), "
        "fn(prompts, responses) or fn(batch)"
    )


def _binds(signature: inspect.Signature, names: Sequence[str] = (), positional: int = 0) -> bool:
    """Whether a function can be called with these keywords and so many arguments by position."""
    try:
        signature.bind(*[None] * positional, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _otherwise(signature: inspect.Signature) -> bool:
    """Whether a function's parameters, by their names, are not those that it would be called with."""
    first, second = [*(name.rstrip("s") for name in signature.parameters), "", ""][:2]
    answers = ("response", "completion", "answer", "text", "output", "prediction", "solution")
    return second == "prompt" or first in answers or (not second and first == "prompt")


def reward_functions(given: Any) -> list[RewardFunction]:
    """One function, a RewardFunction, a mapping name -> function, or a list of any of these, as a list.

    Raises ValueError for an empty list, two functions of one name, and what `kind_of` refuses.
    """
    if isinstance(given, RewardFunction):
        return [given]
    if isinstance(given, Mapping):
        found = [RewardFunction(fn, name) for name, fn in given.items()]
    elif isinstance(given, Sequence):
        found = [item if isinstance(item, RewardFunction) else RewardFunction(item, _name(item)) for item in given]
    else:
        return [RewardFunction(given)]
    names = [function.name for function in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise ValueError(f"several reward functions have the name {twice}" if twice else "no reward function is given")
    return found


def _is_async(fn: Callable[..., Any]) -> bool:
    inner = fn.fn if isinstance(fn, ImportedFunction) else fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(fn).parameters


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
