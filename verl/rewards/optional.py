"""Packages that only some rules need."""

from importlib import import_module
from typing import Any


def optional_package(package: str, rule: str) -> Any:
    """The module of `package` (its name with `_` for `-`). ImportError, with how to install it, when it is missing."""
    try:
        return import_module(package.replace("-", "_"))
    except ImportError as error:
        raise ImportError(f"{rule} needs the package {package} ({error}): pip install {package}") from error
