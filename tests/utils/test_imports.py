import math
import sys

import pytest

from verl.utils.imports import import_from_path, is_import_path


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A folder on the Python path with a package `things_of_mine` in it."""
    package = tmp_path / "things_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "good.py").write_text("class Thing:\n    def method():\n        return 5\n")
    (package / "broken.py").write_text("import no_such_module_anywhere\n")
    (package / "raises.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith("things_of_mine")]:
        del sys.modules[name]


def test_from_a_module_and_into_a_class(module):
    assert import_from_path("math:sqrt") is math.sqrt
    assert import_from_path("things_of_mine.good:Thing.method")() == 5


def test_from_a_file_which_runs_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("values = []\ndef fn():\n    return values\n")
    first, second = import_from_path(f"{file}:fn"), import_from_path(f"{file}:fn")
    assert first is second
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text("def fn():\n    return 'other'\n")
    assert import_from_path(f"{other}:fn")() == "other"  # same file name, another file


def test_a_file_that_failed_is_tried_again(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("raise RuntimeError('not yet')\n")
    with pytest.raises(RuntimeError, match="not yet"):
        import_from_path(f"{file}:fn")
    file.write_text("def fn():\n    return 'now it works'\n")
    assert import_from_path(f"{file}:fn")() == "now it works"


@pytest.mark.parametrize("path", ["math", "math:", ":sqrt", ""])
def test_a_malformed_path(path):
    with pytest.raises(ValueError, match="is no import path: write `package.module:name`"):
        import_from_path(path)


def test_what_is_missing_is_named(tmp_path, module):
    with pytest.raises(ValueError, match="no module named 'no_such_package'"):
        import_from_path("no_such_package.inner:fn")
    with pytest.raises(ValueError, match="no module named 'things_of_mine.absent'"):
        import_from_path("things_of_mine.absent:fn")
    with pytest.raises(ValueError, match=f"there is no file {tmp_path / 'absent.py'}"):
        import_from_path(f"{tmp_path / 'absent.py'}:fn")
    with pytest.raises(ValueError, match="math has no 'sqrtt'; did you mean 'sqrt'?"):
        import_from_path("math:sqrtt")


def test_an_error_inside_the_module_is_its_own(module):
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        import_from_path("things_of_mine.broken:fn")
    with pytest.raises(RuntimeError, match="at import"):
        import_from_path("things_of_mine.raises:fn")


def test_names_and_paths_are_told_apart():
    assert is_import_path("a.b:c") and is_import_path("/a/b.py:c")
    assert not is_import_path("grpo")
