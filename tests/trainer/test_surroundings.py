"""The small Python API from where people start it: scripts, a notebook, beside a Ray cluster of theirs."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CODE = """
import sys
from verl.data import PromptDataset
from verl.trainer import PPOTrainer
from verl.utils import get_model_and_tokenizer

model_dir, prompts, output = sys.argv[1:]
print("loading")
model, tokenizer = get_model_and_tokenizer(model_dir, dtype="float32")
SCALE = 2.0

def score(prompts, responses):
    return [SCALE * len(response) for response in responses]

def train(name, ray_address=None, **config):
    trainer = PPOTrainer(
        actor_model=model,
        reward_fn=score,
        dataset=PromptDataset(prompts, tokenizer, max_prompt_len=16),
        config={
            "training": {"batch_size": 4, "num_steps": 1},
            "rollout": {"max_response_length": 4, **config.pop("rollout", {})},
            "trainer": config,
        },
        output_dir=f"{output}/{name}",
        ray_address=ray_address,
    )
    metrics = trainer.train()
    trained = trainer.get_model()
    print("trained", name, metrics["reward/score_mean"] > 0, type(trained) is type(model))
"""


@pytest.fixture
def arguments(tiny_model_dir_factory, tmp_path: Path) -> list[str]:
    """What the code takes: a model that vLLM runs on a CPU as well, prompts, and a folder to write to."""
    model = tiny_model_dir_factory("llama", hidden_size=64, num_attention_heads=2, num_key_value_heads=1)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{a}+1="}) + "\n" for a in range(8)))
    return [str(model), str(prompts), str(tmp_path / "out")]


def run(code: str, arguments: list[str], tmp_path: Path) -> list[str]:
    """The lines that a script of this code prints about its progress."""
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, "RAY_memory_monitor_refresh_ms": "0"}  # other tests may fill this machine's memory
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=280, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("loading", "trained", "alive"))]


def test_a_script(arguments: list[str], tmp_path: Path) -> None:
    guarded = CODE + "if __name__ == '__main__':\n    train('a', worker_group='local')\n"
    assert run(guarded, arguments, tmp_path) == ["loading", "trained a True True"]


def test_a_script_without_a_guard_runs_once(arguments: list[str], tmp_path: Path) -> None:
    """Neither Ray's processes nor those that score import the script again."""
    assert run(CODE + "train('a')\n", arguments, tmp_path) == ["loading", "trained a True True"]


NOTEBOOK = """
import asyncio, sys
from IPython.core.interactiveshell import InteractiveShell

async def notebook(cells):  # as Jupyter's kernel runs them: an event loop is running
    shell = InteractiveShell.instance()
    for cell in cells:
        result = await shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))
        result.raise_error()

asyncio.run(notebook({cells!r}))
"""


def test_cells_of_a_notebook(arguments: list[str], tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    engine = "hf" if find_spec("vllm") is None else "vllm"
    cells = [
        CODE,
        "import asyncio\nasyncio.get_running_loop()",
        f"train('here', worker_group='local', rollout={{'name': '{engine}'}})",
        f"train('ray', rollout={{'name': '{engine}'}})",
    ]
    assert run(NOTEBOOK.format(cells=cells), arguments, tmp_path) == [
        "loading",
        "trained here True True",
        "trained ray True True",
    ]


CLUSTER = """
import ray
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
try:
    train("there", ray_address=cluster.address)
    assert not ray.is_initialized()
    ray.init(cluster.address, log_to_driver=False)
    print("alive", ray.get(ray.remote(lambda: 1).remote(), timeout=60))  # its only CPU is free again
finally:
    ray.shutdown()
    cluster.shutdown()
"""


def test_a_cluster_that_runs_already_goes_on(arguments: list[str], tmp_path: Path) -> None:
    assert run(CODE + CLUSTER, arguments, tmp_path) == ["loading", "trained there True True", "alive 1"]
