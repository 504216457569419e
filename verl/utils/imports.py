"""Objects named in the configuration by where they live: `package.module:name` or `/folder/file.py:name`."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def is_import_path(name: str) -> bool:
    """Whether `name` says where an object lives rather than being a registered name."""
    return ":" in name


def import_from_path(path: str) -> Any:
    """The object at `package.module:name` or `/folder/file.py:name`; `name` may be dotted (`Class.method`).

    A file is executed once per process, however often it is asked for.

    Raises:
        ValueError: malformed path, no such module or file, or no such name in it. An error inside the module
            itself is raised as it is.
    """
    where, colon, name = path.rpartition(":")
    if not (colon and where and name):
        raise ValueError(f"{path!r} is no import path: write `package.module:name` or `/folder/file.py:name`")
    found: Any = _load_file(where, path) if where.endswith(".py") else _load_module(where, path)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{path!r}: {where} has no {name!r}{_suggestion(part, found)}")
        found = getattr(found, part)
    return found


def _load_module(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that exists but lacks one of its own imports is its author's error, not a wrong path.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ValueError(f"{path!r}: no module named {error.name!r} on the Python path") from error
        raise


def _load_file(where: str, path: str) -> ModuleType:
    file = Path(where).expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"{path!r}: there is no file {file}")
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _suggestion(name: str, owner: Any) -> str:
    near = difflib.get_close_matches(name, dir(owner), n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    public = [known for known in dir(owner) if not known.startswith("_")]
    return f"; it has {', '.join(public[:20])}" if public else ""
