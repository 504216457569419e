import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.conftest import SPECIAL_TOKENS, build_tiny_tokenizer
from verl.config import ModelConfig
from verl.models.loading import (
    check_model_folder,
    get_model_and_tokenizer,
    is_hub_id,
    load_backbone,
    load_causal_lm,
    load_tokenizer,
)


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model's folder, to be damaged."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", True),
        ("gpt2", True),
        ("/data/model", False),
        ("./model", False),
        ("../model", False),
        ("~/model", False),
        ("a/b/c", False),
        ("model.gguf", False),
        ("owner/name/", False),
    ],
)
def test_what_looks_like_a_path_is_never_a_hub_id(name: str, expected: bool) -> None:
    assert is_hub_id(name) is expected


def test_a_name_below_a_folder_that_stands_here_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("models/mine")
    (tmp_path / "models").mkdir()
    assert not is_hub_id("models/mine")
    with pytest.raises(ValueError, match="'models/mine' does not exist"):
        check_model_folder("models/mine")


def test_a_hub_id_that_cannot_be_read_is_named() -> None:
    for load in (load_tokenizer, get_model_and_tokenizer):
        with pytest.raises(ValueError, match="model 'nobody/nothing' is no folder or file here, and cannot be read"):
            load("nobody/nothing")


def test_a_good_folder_passes(folder: Path) -> None:
    check_model_folder(str(folder))


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), "model' has no config.json"),
        (remove("model.safetensors"), "model' has no weights: expected one of model.safetensors, "),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not valid JSON"),
        (cut_off, "model.safetensors are broken or cut off"),
        (lose_a_shard, "lacks model-00002-of-00002.safetensors, which model.safetensors.index.json lists"),
        (shutil.rmtree, "model' does not exist: expected a folder, a .gguf file, or a Hugging Face id"),
    ],
)
def test_a_damaged_folder_is_an_error_that_says_what_is_missing(
    damage: Callable[[Path], Any], message: str, folder: Path
) -> None:
    damage(folder)
    for check in (check_model_folder, get_model_and_tokenizer):
        with pytest.raises(ValueError, match=message):
            check(str(folder))


def test_a_file_that_is_no_gguf_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="is a file: expected a folder, a .gguf file"):
        check_model_folder(str(folder / "config.json"))


def test_f4_without_a_pad_token_the_end_token_pads(folder: Path) -> None:
    tokenizer = build_tiny_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    with pytest.warns(UserWarning, match="has no pad token: padding with its end token '<eos>'"):
        assert load_tokenizer(str(folder)).pad_token_id == SPECIAL_TOKENS.index("<eos>")


def test_neither_pad_nor_end_token_is_an_error(folder: Path) -> None:
    tokenizer = build_tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="neither a pad token nor an end token"):
        load_tokenizer(str(folder))


def test_a_folder_without_tokenizer_is_an_error_that_names_the_option(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="model' has no tokenizer .*set model.tokenizer_path"):
        load_tokenizer(str(folder))


def test_a_chat_template_can_be_replaced(tiny_model_dir: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model_dir), chat_template="{{ messages[0].content }}!")
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hi!"


def test_model_and_tokenizer_of_a_folder(tiny_model_dir: Path) -> None:
    model, tokenizer = get_model_and_tokenizer(str(tiny_model_dir), device="cpu")
    assert model.dtype == torch.float32 and not model.training
    assert tokenizer.decode(tokenizer("the sum")["input_ids"]) == "the sum"


def test_bf16_weights_do_not_round_the_rotary_frequencies(tiny_model_dir: Path) -> None:
    model, _ = get_model_and_tokenizer(str(tiny_model_dir), dtype="bf16", device="cpu")
    exact, _ = get_model_and_tokenizer(str(tiny_model_dir), dtype=torch.float32, device="cpu")
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.model.rotary_emb.inv_freq, exact.model.rotary_emb.inv_freq)


def test_flash_attention_must_be_installed(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="package flash_attn is not installed: use sdpa"):
        get_model_and_tokenizer(str(tiny_model_dir), use_flash_attn=True)


def test_config_values_can_be_overridden_but_not_invented(tiny_model_dir: Path) -> None:
    config = ModelConfig(path=str(tiny_model_dir), override_config={"rms_norm_eps": 0.5})
    assert load_causal_lm(config, torch.float32).model.norm.variance_epsilon == 0.5
    config = ModelConfig(path=str(tiny_model_dir), override_config={"rms_norm_epps": 0.5})
    with pytest.raises(ValueError, match="rms_norm_epps: LlamaConfig has no such value .did you mean 'rms_norm_eps'"):
        load_causal_lm(config, torch.float32)


def test_no_path_is_an_error() -> None:
    with pytest.raises(ValueError, match="model.path is not set"):
        load_backbone(ModelConfig(), torch.float32)


def write_tiny_gguf(path: Path, model: PreTrainedModel) -> None:
    """A Llama as GGUF, with the tiny tokenizer's vocabulary and merges."""
    import gguf

    config, tokenizer = model.config, build_tiny_tokenizer()
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(vocabulary["vocab"]))
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, tensor in model.state_dict().items():
        for heads, part in ((config.num_attention_heads, "q_proj"), (config.num_key_value_heads, "k_proj")):
            if part in name:  # GGUF orders the two halves of a rotary pair next to each other
                tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        block, _, rest = name.removeprefix("model.layers.").partition(".")
        stem = (rest if block.isdigit() else name).removesuffix(".weight")
        writer.add_tensor((f"blk.{block}." if block.isdigit() else "") + names[stem] + ".weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_loads_like_a_folder_and_saves_as_one(
    tiny_model_factory: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    original = tiny_model_factory("llama")
    write_tiny_gguf(tmp_path / "tiny.gguf", original)
    check_model_folder(str(tmp_path / "tiny.gguf"))
    model, tokenizer = get_model_and_tokenizer(str(tmp_path / "tiny.gguf"), device="cpu")
    ids = torch.tensor([[7, 8, 9, 10]])
    torch.testing.assert_close(model(ids).logits, original(ids).logits, atol=1e-5, rtol=0)
    assert tokenizer.eos_token_id == 2 and tokenizer("th+1")["input_ids"] == build_tiny_tokenizer()("th+1")["input_ids"]
    model.save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(ids).logits, model(ids).logits)
    tokenizer.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").get_vocab() == tokenizer.get_vocab()


def test_a_missing_gguf_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none.gguf' does not exist"):
        get_model_and_tokenizer(str(tmp_path / "none.gguf"))
