"""Plug-ins found by name or by import path: what advantage estimators and policy losses share."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from verl.utils.imports import import_from_path, is_import_path

Entry = TypeVar("Entry")


def add_entry(table: dict[str, Entry], kind: str, name: str, entry: Entry) -> None:
    """Put `entry` into `table`.

    Raises:
        ValueError: the name is taken (a second plug-in of one name would win or lose by import order), or holds a
            colon, which is for import paths.
    """
    if name in table:
        raise ValueError(f"{kind} {name!r} is registered already; choose another name")
    if is_import_path(name):
        raise ValueError(f"{kind} {name!r}: a name holds no colon, that is for import paths")
    table[name] = entry


def find_entry(table: dict[str, Entry], kind: str, name: str, entry_class: type[Entry], **of_functions: Any) -> Entry:
    """The entry of that name, or the one at an import path.

    Args:
        entry_class: what entries are; a plain function at an import path becomes `entry_class(fn, **of_functions)`.

    Raises:
        ValueError: unknown name (the message lists the known ones) or wrong import path.
        TypeError: what is there cannot be called.
    """
    if is_import_path(name):
        found = import_from_path(name)
        if isinstance(found, entry_class):
            return found
        if not callable(found):
            raise TypeError(f"{kind} {name!r} is a {type(found).__name__}, not a function")
        return entry_class(found, **of_functions)  # type: ignore[call-arg]
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"unknown {kind} {name!r}.{hint} Known: {', '.join(sorted(table))}; "
            f"your own is given as `package.module:function` or `/folder/file.py:function`"
        )
    return table[name]


def keywords(fn: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a plug-in with their defaults: what a configuration may set."""
    parameters = inspect.signature(fn).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_keywords(fn: Callable[..., Any], given: Iterable[str], where: str) -> None:
    """Refuse what `fn` does not know (a function that takes `**anything` knows everything).

    Args:
        where: the configuration key that holds the arguments, for the message.

    Raises:
        ValueError: names the unknown arguments and lists the known ones.
    """
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(fn).parameters.values()):
        return
    known = keywords(fn)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"{where}: {fn.__name__!r} knows no {', '.join(unknown)}; known: {', '.join(known) or 'none'}")
