"""Models and tokenizers from a Hugging Face id, a local folder or a .gguf file; mistakes show before anything loads."""

import difflib
import importlib.util
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from verl.config import ModelConfig
from verl.utils.backends import resolve_device, resolve_dtype

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

VALUE_HEAD_FILE = "value_head.safetensors"
"""Marks the folder of a saved `ValueModel`."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "merges.txt")


def is_hub_id(name: str) -> bool:
    """Whether `name` is to be looked up on the Hugging Face hub. Whatever looks like a local path never is."""
    if name.startswith((".", "~", "/")) or name.endswith(".gguf") or not _HUB_ID.fullmatch(name):
        return False
    # "models/mine" could be both: where "models" stands here, a path is meant.
    return not Path(Path(name).parts[0]).exists()


def check_model_folder(path: str) -> None:
    """Look, without loading anything, whether a model can be read from `path`. Hub ids pass unseen.

    ValueError for a missing path, a folder without config.json or without weights, a missing shard or a broken file.
    """
    if is_hub_id(path):
        return
    folder = _existing(path)
    if folder.is_file():
        if folder.suffix != ".gguf":
            raise ValueError(f"model {path!r} is a file: expected a folder, a .gguf file or a Hugging Face id")
        return
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise ValueError(f"model folder {path!r} has no config.json: expected a Hugging Face model folder")
    _read_json(config_file)
    present = [name for name in _WEIGHT_FILES if (folder / name).is_file()]
    if not present:
        raise ValueError(f"model folder {path!r} has no weights: expected one of {', '.join(_WEIGHT_FILES)}")
    weights = folder / present[0]
    if weights.suffix == ".json":
        shards = sorted(set(_read_json(weights)["weight_map"].values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise ValueError(f"model folder {path!r} lacks {', '.join(missing)}, which {weights.name} lists")
        files = [folder / shard for shard in shards]
    else:
        files = [weights]
    for file in files:
        _check_weight_file(file)


def position_limit(config: Mapping[str, Any]) -> int | None:
    """The longest sequence that a model has positions for; None when its config does not say."""
    limits = [config[key] for key in ("max_position_embeddings", "n_positions") if config.get(key)]
    return min(limits, default=None)


def heads_problem(config: Mapping[str, Any], size: int) -> str | None:
    """Why the attention heads of a model cannot be split over `size` processes; None when they can, or are not named.

    Args:
        config: what the model's config.json says. Each process takes the same number of heads, and of key/value heads
            the same number, or several processes share one.
    """
    heads = config.get("num_attention_heads") or config.get("n_head")
    if heads is None:
        return None
    key_heads = config.get("num_key_value_heads") or heads
    if heads % size or (key_heads % size and size % key_heads):
        return f"{heads} attention heads ({key_heads} key/value heads) cannot be split over tensor parallel {size}"
    return None


def local_config(path: str) -> dict[str, Any]:
    """The config.json of a local model folder; empty for hub ids and .gguf files."""
    config_file = Path(path).expanduser() / "config.json"
    return {} if is_hub_id(path) or not config_file.is_file() else _read_json(config_file)


def saved_value_head(path: str) -> Path | None:
    """The value head's file when `path` is the folder of a saved `ValueModel`."""
    file = Path(path).expanduser() / VALUE_HEAD_FILE
    return file if file.is_file() else None


def load_tokenizer(
    path: str, trust_remote_code: bool = False, chat_template: str | None = None
) -> "PreTrainedTokenizerBase":
    """The tokenizer of a hub id, a folder or a .gguf file. `chat_template` replaces its own.

    Without a pad token the end token pads, with a warning. ValueError when there is no tokenizer, or when it has no
    end token either.
    """
    from transformers import AutoTokenizer

    source, kwargs = _source(path)
    if Path(source).is_dir() and not kwargs and not any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(
            f"folder {path!r} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}): set model.tokenizer_path"
        )
    with _found(path):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code, **kwargs)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ValueError(f"tokenizer {path!r} has neither a pad token nor an end token to pad with: set one in it")
        warnings.warn(
            f"tokenizer {path!r} has no pad token: padding with its end token {tokenizer.eos_token!r}", stacklevel=2
        )
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def load_model_tokenizer(config: ModelConfig, chat_template: str | None = None) -> "PreTrainedTokenizerBase":
    """The tokenizer that belongs to a configured model: at `tokenizer_path`, else beside the weights."""
    path = config.tokenizer_path or config.path
    if path is None:
        raise ValueError("model.path and model.tokenizer_path are both null: one must say where the tokenizer is")
    return load_tokenizer(path, config.trust_remote_code, chat_template)


def load_causal_lm(config: ModelConfig, dtype: torch.dtype) -> "PreTrainedModel":
    """The language model of `config`, on the CPU, in `dtype`. Errors as in `check_model_folder`."""
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, config, dtype)


def load_backbone(config: ModelConfig, dtype: torch.dtype) -> "PreTrainedModel":
    """The language model of `config` without its output layer."""
    from transformers import AutoModel

    return _load(AutoModel, config, dtype)


def is_sequence_classifier(config: ModelConfig) -> bool:
    """Whether config.json at `config.path` names a sequence classifier, whose head has been trained."""
    from transformers import AutoConfig

    if config.path is None:
        raise ValueError("model.path is not set: give a Hugging Face id, a local folder or a .gguf file")
    source, kwargs = _source(config.path)
    with _found(config.path):
        loaded = AutoConfig.from_pretrained(source, trust_remote_code=config.trust_remote_code, **kwargs)
    return any(name.endswith("ForSequenceClassification") for name in loaded.architectures or ())


def load_sequence_classifier(config: ModelConfig, dtype: torch.dtype) -> "PreTrainedModel":
    """The sequence-classification model of `config`. ValueError when its folder holds no classification head."""
    from transformers import AutoModelForSequenceClassification

    return _load(AutoModelForSequenceClassification, config, dtype)


def get_model_and_tokenizer(
    model_name: str | Path,
    use_flash_attn: bool = False,
    dtype: str | torch.dtype = "auto",
    trust_remote_code: bool = False,
    device: str | None = None,
) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """A causal language model, ready for use, and its tokenizer.

    `model_name` is a Hugging Face id, a local folder, or a .gguf file (its weights are dequantized, so the model
    trains and saves like any other). `dtype` is fp32, bf16, fp16, a torch dtype, or auto: bf16 on CUDA and fp32 on
    the CPU. `device` is cpu or cuda; None takes CUDA when there is a device.
    """
    if not isinstance(model_name, str | Path):
        raise TypeError(f"model_name is {model_name!r:.100}: expected a Hugging Face id, a folder or a .gguf file")
    model_name = str(model_name)
    place = resolve_device(device or "auto")
    weights = dtype if isinstance(dtype, torch.dtype) else resolve_dtype(dtype, place)
    attention = "flash_attention_2" if use_flash_attn else "sdpa"
    config = ModelConfig(path=model_name, trust_remote_code=trust_remote_code, attn_implementation=attention)
    check_model_folder(model_name)
    tokenizer = load_tokenizer(model_name, trust_remote_code)
    model: Any = load_causal_lm(config, weights)
    return model.to(place), tokenizer


def _load(auto_class: Any, config: ModelConfig, dtype: torch.dtype) -> "PreTrainedModel":
    if config.path is None:
        raise ValueError("model.path is not set: give a Hugging Face id, a local folder or a .gguf file")
    check_model_folder(config.path)
    if config.attn_implementation == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise ValueError("flash_attention_2 was asked for, but package flash_attn is not installed: use sdpa")
    source, kwargs = _source(config.path)
    with _found(config.path), _without_load_report():
        loaded_config = _model_config(config, source, kwargs)
        # The dtype is given while loading: casting a loaded model would round its rotary frequencies as well.
        model, report = auto_class.from_pretrained(
            source,
            config=loaded_config,
            dtype=dtype,
            attn_implementation=_attention(auto_class, loaded_config, config.attn_implementation),
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
            **kwargs,
        )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ValueError(
            f"model {config.path!r} lacks {len(missing)} weights of a {type(model).__name__}, such as {missing[0]!r}: "
            "they would be random. Is it a model of another kind?"
        )
    if "gguf_file" in kwargs:
        model = _as_plain_model(auto_class, model, dtype)
    return model.eval()


@contextmanager
def _without_load_report() -> Iterator[None]:
    """transformers warns of weights that a model leaves unread, as a critic does the output layer's; what is missing is
    an error of ours."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def _found(path: str) -> Iterator[None]:
    """Say which model it is that the hub does not have, or that cannot be fetched from it."""
    try:
        yield
    except OSError as error:
        if not is_hub_id(path):
            raise
        raise ValueError(
            f"model {path!r} is no folder or file here, and cannot be read from the Hugging Face hub: {error}"
        ) from error


def _attention(auto_class: Any, config: Any, wanted: str) -> str:
    """`wanted`, or eager in the place of sdpa for the models that have only that, such as DeBERTa."""
    known = type(config) in auto_class._model_mapping
    supported = not known or getattr(auto_class._model_mapping[type(config)], "_supports_sdpa", True)
    return "eager" if wanted == "sdpa" and not supported else wanted


def _model_config(config: ModelConfig, source: str, kwargs: dict[str, Any]) -> "PretrainedConfig":
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained(source, trust_remote_code=config.trust_remote_code, **kwargs)
    for name, value in config.override_config.items():
        if not hasattr(loaded, name):
            near = difflib.get_close_matches(name, loaded.to_dict(), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"model.override_config.{name}: {type(loaded).__name__} has no such value{hint}")
        setattr(loaded, name, value)
    return loaded


def _as_plain_model(auto_class: Any, loaded: "PreTrainedModel", dtype: torch.dtype) -> "PreTrainedModel":
    """The same weights in a model that does not remember its GGUF origin, which would keep it from being saved."""
    config = loaded.config
    del config.quantization_config
    plain = auto_class.from_config(config, dtype=dtype, attn_implementation=config._attn_implementation)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    return plain


def _source(path: str) -> tuple[str, dict[str, Any]]:
    """(name or folder, extra arguments) for `from_pretrained`."""
    if is_hub_id(path):
        return path, {}
    local = _existing(path)
    if local.suffix != ".gguf":
        return str(local), {}
    missing = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(f"reading {path!r} needs more packages: pip install {' '.join(missing)}")
    return str(local.parent), {"gguf_file": local.name}


def _existing(path: str) -> Path:
    local = Path(path).expanduser()
    if not local.exists():
        raise ValueError(
            f"model path {path!r} does not exist: expected a folder, a .gguf file, or a Hugging Face id (owner/name)"
        )
    return local


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error


def _check_weight_file(file: Path) -> None:
    """Reads only the header; a download that broke off, or a Git LFS pointer, shows there."""
    if file.suffix != ".safetensors":
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"weights {file} are broken or cut off ({error}): copy them again") from error
