"""Importing is light, and the public names are where they are promised to be."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import verl

ROOT = Path(__file__).parents[1]
HEAVY = ("ray", "vllm", "sglang", "transformers", "torch", "tensordict", "pyarrow", "numpy")

PUBLIC_NAMES = {
    "verl": ["DataProto", "__version__"],
    "verl.protocol": [
        "DataProto",
        "DataProtoFuture",
        "DataProtoItem",
        "pad_dataproto_to_divisor",
        "unpad_dataproto",
    ],
    "verl.data": ["PromptDataset", "RLHFDataset"],
    "verl.trainer": ["PreferenceTrainer", "RayPPOTrainer", "RewardModelTrainer", "SFTTrainer"],
    "verl.utils": ["get_model_and_tokenizer"],
    "verl.utils.debug": ["print_memory_usage"],
    "verl.utils.tracking": ["Tracking"],
    "verl.worker": ["Dispatch", "Execute", "Worker", "register"],
    "verl.worker.model_worker": ["ModelWorker"],
    "verl.workers.ray": [
        "MegatronRayWorkerGroup",
        "RayClassWithInitArgs",
        "RayResourcePool",
        "RayWorkerGroup",
        "create_colocated_worker_cls",
    ],
}


def loaded_after(statement: str) -> set[str]:
    """The modules among HEAVY that a fresh process has after `statement`."""
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_verl_loads_nothing_heavy() -> None:
    assert loaded_after("import verl; verl.__version__; dir(verl)") == set()


def test_reading_a_config_loads_nothing_heavy() -> None:
    statement = (
        "from verl.config.loader import load_config\nfrom verl.config.validate import resolve\nresolve(load_config())"
    )
    assert loaded_after(statement) == set()


def test_a_batch_needs_neither_ray_nor_a_model_library() -> None:
    assert loaded_after("from verl import DataProto; DataProto") & {"ray", "vllm", "sglang", "transformers"} == set()


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in PUBLIC_NAMES for name in PUBLIC_NAMES[module]]
)
def test_public_names(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'verl' has no attribute 'NoSuchThing'"):
        _ = verl.NoSuchThing


def test_the_version_is_that_of_the_package() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", verl.__version__)
    assert 'version = { attr = "verl.__version__" }' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
