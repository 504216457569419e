"""From what a user names as data to files on this machine: paths, globs, and URLs of any fsspec file system."""

import glob
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_URL = re.compile(r"[a-z][a-z0-9+.\-]*://|[a-z0-9+]+::")
_GLOB = re.compile(r"[*?\[]")
GENERATED = "reasoning_gym:"
"""What a name of generated data begins with (`verl.data.generated`)."""

Files = str | Path | Sequence[str | Path]


def cache_folder() -> Path:
    """Where downloads and mapped files are kept: $VERL_CACHE_DIR, or else `verl` in the user's cache folder. Whatever
    is in it can be deleted; it is made again."""
    given = os.environ.get("VERL_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl"


def local_files(files: Files | None) -> list[str | Path]:
    """Each file by its place on this machine, in the order given; those of a glob by name.

    `s3://...`, `hf://...`, `https://...` and whatever else fsspec knows is downloaded into the cache folder, and again
    when it has changed. Names of generated data stay as they are.

    Raises:
        ValueError: nothing is given; a URL's file system is not known, not installed or refuses.
        FileNotFoundError: no file fits a glob; a URL leads to nothing.
    """
    names = [files] if isinstance(files, str | Path) else list(files or ())
    if not names:
        raise ValueError("no data file is given: set the key to a path or a list of paths")
    found: list[str | Path] = []
    for name in names:
        if isinstance(name, str) and name.startswith(GENERATED):
            found.append(name)
        elif isinstance(name, str) and _URL.match(name):
            found += _download(name)
        else:
            found += _expand(Path(name).expanduser())
    return found


def _expand(path: Path) -> list[Path]:
    if path.exists() or not _GLOB.search(str(path)):
        return [path]
    fitting = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not fitting:
        raise FileNotFoundError(f"no file fits {path}")
    return fitting


def _download(url: str) -> list[Path]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
        remote = sorted(system.glob(path)) if _GLOB.search(path) else [path]
        if not remote or not all(system.exists(each) for each in remote):
            raise FileNotFoundError(f"there is no file {url}")
        return [_fetch(system, each, url) for each in remote]
    except FileNotFoundError:
        raise
    except ImportError as error:
        raise ValueError(f"{url} needs a package that is not installed: {error}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{url} cannot be read: {error}") from error


def _fetch(system: Any, path: str, url: str) -> Path:
    """The local copy of a remote file; a new one when the remote file has changed, or nothing tells whether it has."""
    info = system.info(path)
    told = [info[name] for name in ("ETag", "Last-Modified", "size") if info.get(name) is not None]
    # The `ukey` of most file systems changes with the file, but that of HTTP is the URL.
    cached = bool(told) or "http" not in system.protocol
    key = hashlib.sha256(f"{url} {path} {system.ukey(path)} {told}".encode()).hexdigest()[:24]
    target = cache_folder() / key / Path(path).name
    if not (cached and target.exists()):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
        os.close(handle)
        try:
            system.get_file(path, name)
            os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
    return target
