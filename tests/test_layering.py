"""Who may import whom, and the one door of each heavy dependency. Imports inside functions count as well."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LEVEL_0 = {"protocol", "config", "utils"}
MAY_IMPORT = {
    "protocol": LEVEL_0,
    "config": set(),
    "utils": LEVEL_0,
    "algorithms": LEVEL_0,
    "data": LEVEL_0,
    "rewards": LEVEL_0,
    "models": LEVEL_0 | {"algorithms"},
    "engine": LEVEL_0 | {"models", "algorithms"},
    "rollout": LEVEL_0 | {"models", "algorithms"},
    "worker": LEVEL_0 | {"engine", "rollout", "models", "algorithms", "rewards"},
    "workers": LEVEL_0 | {"worker"},
    # The driver needs the tokenizer and looks whether model folders are complete, hence models.
    "trainer": LEVEL_0 | {"workers", "worker", "algorithms", "data", "rewards", "models"},
    "__init__": {"protocol"},
}

# Public names that live in a lower package than what they lead to. Each is resolved when it is asked for.
LAZY_NAMES = {("verl/utils/__init__.py", "models")}

DOORS = {
    "ray": ("verl/workers/ray/", "verl/trainer/"),
    "vllm": ("verl/rollout/",),
    "sglang": ("verl/rollout/",),
    "transformers": ("verl/models/", "verl/data/"),
    "omegaconf": ("verl/config/loader.py",),
    "tensorboard": ("verl/utils/tracking/",),
    "torch.utils.tensorboard": ("verl/utils/tracking/",),
    "wandb": ("verl/utils/tracking/",),
    "mlflow": ("verl/utils/tracking/",),
    "swanlab": ("verl/utils/tracking/",),
    "trackio": ("verl/utils/tracking/",),
}

# Reading a config must not cost the seconds that these take to import.
NEVER_IN_CONFIG = {"torch", "tensordict", "numpy", "pyarrow"}


def imports_of(source: str, file: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports, wherever in it and however."""
    package = file.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            # `from verl import config` and `from torch.utils import tensorboard` import submodules.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__", "importorskip"):
                yield node.lineno, str(node.args[0].value)


def violations(source: str, file: str) -> list[str]:
    """What a module imports against the rules, each as `file:line: sentence`."""
    layer = file.split("/")[1].removesuffix(".py")
    found = []
    for line, name in imports_of(source, file):
        top, _, below = name.partition(".")
        other = below.partition(".")[0] if top == "verl" else layer
        allowed = other in MAY_IMPORT[layer] or other == layer or (file, other) in LAZY_NAMES
        if other in MAY_IMPORT and not allowed:
            found.append(f"{file}:{line}: {layer} must not import verl.{other}")
        for dependency, doors in DOORS.items():
            if f"{name}.".startswith(f"{dependency}.") and not file.startswith(doors):
                found.append(f"{file}:{line}: {dependency} is imported only in {', '.join(doors)}")
        if layer == "config" and top in NEVER_IN_CONFIG:
            found.append(f"{file}:{line}: config must not import {top}")
    return found


def test_the_house_keeps_its_layers() -> None:
    files = sorted((ROOT / "verl").rglob("*.py"))
    found = [
        violation
        for file in files
        for violation in violations(file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix())
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in (ROOT / "verl").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "verl").glob("*.py")}
    assert packages | modules <= set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("file", "source", "violation"),
    [
        ("verl/algorithms/kl.py", "import verl.engine.base", "algorithms must not import verl.engine"),
        ("verl/algorithms/kl.py", "from verl import engine", "algorithms must not import verl.engine"),
        ("verl/algorithms/kl.py", "from ..engine import base", "algorithms must not import verl.engine"),
        ("verl/engine/fsdp/engine.py", "from ...rollout.base import Sampling", "engine must not import verl.rollout"),
        ("verl/rollout/hf.py", "def f():\n    from verl.engine import base", "rollout must not import verl.engine"),
        ("verl/worker/base.py", "import ray", "ray is imported only in verl/workers/ray/"),
        ("verl/worker/base.py", "from ray.util import placement_group", "ray is imported only in verl/workers/ray/"),
        ("verl/worker/base.py", "import importlib\nimportlib.import_module('ray.util')", "ray is imported only in"),
        ("verl/utils/a.py", "from torch.utils import tensorboard", "torch.utils.tensorboard is imported only in"),
        ("verl/utils/a.py", "import transformers as t", "transformers is imported only in verl/models/, verl/data/"),
        ("verl/utils/a.py", "from verl.models import loading", "utils must not import verl.models"),
        ("verl/config/tree.py", "import omegaconf", "omegaconf is imported only in verl/config/loader.py"),
        ("verl/config/tree.py", "import torch.nn", "config must not import torch"),
        ("verl/__init__.py", "from verl.trainer import RayPPOTrainer", "__init__ must not import verl.trainer"),
    ],
)
def test_the_rules_see_it(file: str, source: str, violation: str) -> None:
    (found,) = violations(source, file)
    line = source.count("\n") + 1
    assert found.startswith(f"{file}:{line}: {violation}")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "verl/workers/ray/group.py",
            "import ray\nfrom verl.worker import Worker\nfrom . import pool\nfrom .. import group",
        ),
        ("verl/algorithms/kl.py", "from verl.algorithms.masked import masked_sum\nimport verl\nimport rayon"),
        ("verl/utils/__init__.py", "from verl.models.loading import get_model_and_tokenizer"),
        ("verl/__init__.py", "from verl.protocol import DataProto"),
    ],
)
def test_the_rules_let_it_pass(file: str, source: str) -> None:
    assert violations(source, file) == []
