"""Fixtures that all tests share: tiny random models, a tiny tokenizer, and a way to run on several processes.

Nothing heavy is imported here: tests that use none of it stay fast.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tensordict import TensorDict
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# Tests never reach for the network, and tiny tensors are fastest on one thread.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A Ray of the tests' own, whatever else runs on this machine.
os.environ.setdefault("RAY_ADDRESS", "local")

TINY_VOCAB = 128
MODEL_FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "opt")
SPECIAL_TOKENS = ["<pad>", "<bos>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>"]
PAIRS = "thheineranreonatenndtiesorteofedisitalarsttontngseha"  # frequent in English
BIGRAMS = [PAIRS[i : i + 2] for i in range(0, len(PAIRS), 2)]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """128 tokens: 6 special ones (ids 0 to 5), newline, printable ASCII, and 26 pairs of letters; it adds no BOS."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *characters, *BIGRAMS])}
    assert len(vocabulary) == TINY_VOCAB
    merges = [(pair[0], pair[1]) for pair in BIGRAMS]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_config(family: str, **overrides: Any) -> Any:
    """Two layers, width 32, 4 heads, 128 tokens; weights large enough for logits to differ visibly."""
    from transformers import GPT2Config, LlamaConfig, OPTConfig, Qwen2Config, Qwen3Config

    common: dict[str, Any] = {
        "vocab_size": TINY_VOCAB,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    modern = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,
    }
    old = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.15}
    opt = {
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "init_std": 0.15,
    }
    classes: dict[str, tuple[Any, dict[str, Any]]] = {
        "llama": (LlamaConfig, modern),
        "qwen2": (Qwen2Config, modern),
        "qwen3": (Qwen3Config, {**modern, "head_dim": 8}),
        "gpt2": (GPT2Config, old),
        "opt": (OPTConfig, opt),
    }
    config_class, sizes = classes[family]
    return config_class(**{**common, **sizes, **overrides})


def build_tiny_model(family: str = "llama", seed: int = 0, **overrides: Any) -> "PreTrainedModel":
    """A tiny random causal language model in fp32; overrides go into its config."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(tiny_config(family, **overrides), attn_implementation="sdpa").eval()


def build_ragged_batch(rows: int = 7, prompt_width: int = 5, response_width: int = 4, seed: int = 0) -> "TensorDict":
    """Random prompts (padded on the left) and responses (padded on the right) of 1 token up to the full width.

    Padding holds random ids too, and `weight` [rows, response_width] random numbers for tests to make losses of.
    """
    import torch
    from tensordict import TensorDict

    random = torch.Generator().manual_seed(seed)
    width = prompt_width + response_width
    attention_mask, response_mask = torch.zeros(rows, width).long(), torch.zeros(rows, response_width).long()
    for row in range(rows):
        prompt = int(torch.randint(1, prompt_width + 1, (), generator=random))
        response = int(torch.randint(1, response_width + 1, (), generator=random))
        attention_mask[row, prompt_width - prompt : prompt_width + response] = 1
        response_mask[row, :response] = 1
    return TensorDict(
        {
            "input_ids": torch.randint(len(SPECIAL_TOKENS), TINY_VOCAB, (rows, width), generator=random),
            "attention_mask": attention_mask,
            "response_mask": response_mask,
            "weight": torch.randn(rows, response_width, generator=random),
        },
        batch_size=rows,
    )


@pytest.fixture
def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    return build_tiny_tokenizer()


@pytest.fixture
def tiny_model_factory() -> "Callable[..., PreTrainedModel]":
    """`tiny_model_factory(family="llama", seed=0, **config_overrides)` -> a tiny random causal language model."""
    return build_tiny_model


@pytest.fixture(scope="session")
def tiny_model_dir_factory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model_dir_factory(family="llama", seed=0, **config_overrides)` -> a folder of model and tokenizer.

    Read-only: tests share it. Copy it to change it.
    """

    def build(family: str = "llama", seed: int = 0, **overrides: Any) -> Path:
        folder = tmp_path_factory.mktemp(f"tiny_{family}")
        build_tiny_model(family, seed, **overrides).save_pretrained(folder)
        build_tiny_tokenizer().save_pretrained(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def tiny_model_dir(tiny_model_dir_factory: Callable[..., Path]) -> Path:
    """A folder with a tiny random Llama and its tokenizer. Read-only: tests share it."""
    return tiny_model_dir_factory("llama")


@pytest.fixture
def run_distributed(tmp_path: Path) -> Callable[..., list[Any]]:
    """`run_distributed(function, world_size, *args)` -> what `function(*args)` returned on each process, by rank.

    `function` stands at the top level of a test file; each process loads that file anew, joins one gloo group of
    `world_size` processes, and calls it. Arguments and results travel by torch.save. A process that fails makes
    the test fail with its output, and the others are ended.
    """

    def run(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 120) -> list[Any]:
        import torch

        folder = tmp_path / f"{function.__name__}_{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        torch.save(args, folder / "args.pt")
        runner = Path(__file__).parent / "distributed.py"
        source = sys.modules[function.__module__].__file__
        command = [sys.executable, str(runner), str(source), function.__name__, str(folder), str(world_size)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            pytest.fail(f"{function.__name__} on {world_size} processes:\n{done.stdout}\n{done.stderr}", pytrace=False)
        return [torch.load(folder / f"result_{rank}.pt", weights_only=False) for rank in range(world_size)]

    return run


# ---- whole runs on a tiny model ----


@pytest.fixture(scope="session")
def sums_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 sums of one digit each, as the field's data sets have them."""
    rows = [
        {
            "data_source": "arithmetic",
            "prompt": f"{a}+{b}=",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": index},
        }
        for index, (a, b) in enumerate((a, b) for a in range(1, 4) for b in range(1, 5))
    ]
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("sums") / "sums.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="session")
def letters_reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a rule that a random model satisfies now and then, so that there is something to learn from."""
    path = tmp_path_factory.mktemp("reward") / "letters.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return sum(character.isalpha() for character in solution_str) / 5\n"
    )
    return path


@pytest.fixture
def tiny_run(tiny_model_dir: Path, sums_file: Path, letters_reward: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """`tiny_run("key=value", ...)` -> overrides of a run of 2 steps in this process; the given ones win."""

    def overrides(*extra: str) -> list[str]:
        return [
            f"actor_rollout_ref.model.path={tiny_model_dir}",
            f"data.train_files={sums_file}",
            f"data.val_files={sums_file}",
            "data.train_batch_size=4",
            "data.max_prompt_length=8",
            "data.max_response_length=5",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "critic.optim.lr=1e-3",
            "algorithm.use_kl_in_reward=true",
            f"reward.custom_reward_function.path={letters_reward}",
            "trainer.total_training_steps=2",
            "trainer.val_before_train=false",
            "trainer.logger=[file]",
            "trainer.worker_group=local",
            f"trainer.default_local_dir={tmp_path / 'run'}",
            *extra,
        ]

    return overrides


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's metrics file, one a step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run_metrics(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """`run_metrics(overrides, name)` runs in a folder of its own and returns what was logged."""
    from verl.config.loader import load_config
    from verl.trainer.checks import checked
    from verl.trainer.main_ppo import run

    def execute(overrides: list[str], name: str = "run") -> list[dict[str, Any]]:
        folder = tmp_path / name
        run(checked(load_config([*overrides, f"trainer.default_local_dir={folder}"])))
        return read_metrics(folder)

    return execute
