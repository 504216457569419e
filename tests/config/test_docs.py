"""docs/config.md is what the code says, and every key in it is read by some code."""

import ast
from pathlib import Path

from verl.config.docs import ROOTS, render
from verl.config.tree import Leaf, leaf_at, leaves, sections
from verl.config.unsupported import UNSUPPORTED

ROOT = Path(__file__).parents[2]


def all_leaves() -> dict[str, Leaf]:
    """The keys of every kind of run."""
    return {path: leaf for root, _ in ROOTS.values() for path, leaf in leaves(root).items()}


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == render(), "run: python -m verl.config.docs > docs/config.md"


def test_the_page_has_every_key() -> None:
    page = render()
    assert [path for path in all_leaves() if f"| `{path}` |" not in page] == []
    assert [row.pattern for row in UNSUPPORTED if f"| `{row.pattern}` |" not in page] == []
    assert "| `data.train_batch_size` | int; at least 1 | `1024` | prompts (not samples) per step |" in page
    assert "| `critic.optim.lr` | float; above 0 | `1e-05` |" in page


def test_every_key_has_a_meaning() -> None:
    assert [path for path, leaf in all_leaves().items() if not leaf.doc.strip()] == []


def test_the_tree() -> None:
    assert leaf_at("data.train_batch_size") is leaves()["data.train_batch_size"]
    assert leaf_at("actor_rollout_ref.model.override_config.a.b") is leaves()["actor_rollout_ref.model.override_config"]
    assert leaf_at("data.train_batch_size.x") is None
    assert leaf_at("data") is None and "data" in sections()
    assert "data.train_batch_size" not in sections()
    names = {
        "trainer.seed": "int",
        "trainer.total_training_steps": "int or null",
        "trainer.logger": "list of str",
        "data.truncation": "one of error, left, right, middle",
        "data.train_files": "str or list of str or null",
        "data.apply_chat_template_kwargs": "mapping",
    }
    assert {path: leaves()[path].type_name for path in names} == names


def _attributes_read(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def test_every_key_is_read() -> None:
    config = ROOT / "verl" / "config"
    # These read keys for all others: they turn them into the values of other keys, and into places.
    files = [file for file in (ROOT / "verl").rglob("*.py") if config not in file.parents]
    files += [config / "resolve.py", config / "device_map.py"]
    read = set().union(*map(_attributes_read, files))
    unread = [path for path in all_leaves() if path.rpartition(".")[2] not in read]
    assert unread == []
