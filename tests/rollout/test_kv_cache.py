"""The key-value cache, and how many rows fit."""

from pathlib import Path

import pytest
import torch

from verl.rollout import kv_cache
from verl.rollout.kv_cache import RowCache, row_bytes, rows_that_fit
from verl.utils import memory


def states(*rows: list[float]) -> torch.Tensor:
    """[rows, 1 head, tokens, 1]"""
    return torch.tensor(rows)[:, None, :, None]


def test_rows_copy_their_prompt_grow_and_leave() -> None:
    cache = RowCache(owner=torch.tensor([0, 1, 1]), capacity=4)
    assert cache.get_seq_length() == 0 and cache.get_mask_sizes(2, 0) == (2, 0)
    prefill = states([1, 2], [3, 4])
    keys, values = cache.update(prefill, -prefill, 0)
    assert keys is prefill, "prefill attends to the distinct prompts only"
    assert cache.get_seq_length() == cache.get_query_offset() == 2
    keys, values = cache.update(states([5], [6], [7]), -states([5], [6], [7]), 0)
    assert keys[:, 0, :, 0].tolist() == [[1, 2, 5], [3, 4, 6], [3, 4, 7]]
    assert torch.equal(values, -keys)
    cache.keep(torch.tensor([2, 1]))
    keys, values = cache.update(states([8], [9]), -states([8], [9]), 0)
    assert keys[:, 0, :, 0].tolist() == [[3, 4, 7, 8], [3, 4, 6, 9]]
    assert torch.equal(values, -keys)
    assert cache.get_seq_length() == 4 and cache.get_seq_length(1) == 0


def test_memory_of_a_row(tiny_model_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 layers of 2 heads of 8, keys and values, fp32, 16 tokens: 2*2*2*8*4*16 = 4096 bytes, and
    16*32*4*10 = 20480 for prefill, and 32*128 = 4096 for logits."""
    config = tiny_model_factory("qwen3").config
    assert row_bytes(config, torch.float32, prompt=10, new=6) == 4096 + 20480 + 4096
    assert row_bytes(tiny_model_factory("gpt2").config, torch.float32, 10, 6) == 2 * 4096 + 20480 + 4096
    cpu = torch.device("cpu")
    for free, rows in ((0, 1), (28672 * 10 / 0.3 + 1, 10), (10**12, kv_cache.MAX_ROWS)):
        monkeypatch.setattr(kv_cache, "available_bytes", lambda _, free=free: free)
        assert rows_that_fit(config, torch.float32, cpu, 10, 6) == rows


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    assert kv_cache.available_bytes(torch.device("cpu")) > 100
    for name, text in (("max", "70\n"), ("current", "30\n"), ("stat", "anon 25\ninactive_file 0\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert kv_cache.available_bytes(torch.device("cpu")) == 40
