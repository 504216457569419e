"""Which engine a name means, and what is said when it is not here."""

import logging
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.conftest import build_tiny_model
from verl.config import RolloutConfig
from verl.rollout import ROLLOUT_ENGINES, build_rollout
from verl.rollout.base import Sampling
from verl.rollout.hf_engine import HFRolloutEngine

HAS_VLLM = find_spec("vllm") is not None
CPU = {"dtype": torch.float32, "device": "cpu", "seed": 0}


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="name='vlm' is not a rollout engine: expected one of auto, hf, vllm"):
        build_rollout(RolloutConfig(name="vlm"), build_tiny_model(), **CPU)
    assert list(ROLLOUT_ENGINES) == ["auto", "hf", "vllm"]


def test_hf_copies_the_model() -> None:
    model = build_tiny_model()
    engine = build_rollout(RolloutConfig(name="hf"), model, dtype=torch.bfloat16, device="cpu", seed=0)
    assert isinstance(engine, HFRolloutEngine)
    assert engine.model is not model and model.dtype == torch.float32
    assert engine.model.dtype == torch.bfloat16
    assert not any(parameter.requires_grad for parameter in engine.model.parameters())


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here")
def test_without_vllm(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="needs vllm, which is not installed: pip install vllm"):
        build_rollout(RolloutConfig(name="vllm"), build_tiny_model(), **CPU)
    with caplog.at_level(logging.INFO):
        assert isinstance(build_rollout(RolloutConfig(name="auto"), build_tiny_model(), **CPU), HFRolloutEngine)
    assert caplog.messages == ["rollout.name=auto generates with transformers (hf), since vLLM is not installed"]


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here")
def test_auto_with_a_broken_vllm(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('libtorch.so is another one')")
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.INFO):
        assert isinstance(build_rollout(RolloutConfig(name="auto"), build_tiny_model(), **CPU), HFRolloutEngine)
    assert "cannot be imported (ImportError: libtorch.so is another one)" in caplog.text


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed here")
def test_auto_with_vllm(caplog: pytest.LogCaptureFixture) -> None:
    from verl.rollout import vLLMRolloutEngine

    with caplog.at_level(logging.INFO):
        small = build_rollout(RolloutConfig(name="auto"), build_tiny_model(), **CPU)
    assert isinstance(small, HFRolloutEngine)
    assert caplog.messages[-1].startswith(
        "rollout.name=auto generates with transformers (hf), since its attention heads have size 8, and vLLM on a CPU"
    )
    model = build_tiny_model(hidden_size=64, num_attention_heads=2, num_key_value_heads=1)
    config = RolloutConfig(name="auto", max_model_len=64, free_cache_engine=False, engine_kwargs={"vllm": {"seed": 3}})
    with pytest.raises(ValueError, match="engine_kwargs.vllm.seed is set by a key of its own"):
        build_rollout(config, model, **CPU)
    config.engine_kwargs = {"vllm": {"block_size": 64}}
    with caplog.at_level(logging.INFO):
        engine = build_rollout(config, model, **CPU)
    assert isinstance(engine, vLLMRolloutEngine)
    assert caplog.messages[-1].endswith("generates with vLLM, which is installed and runs LlamaForCausalLM")
    assert engine.settings.sleep_level == 0 and engine.max_model_len == 64
    engine.update_weights(model.named_parameters(), 1)
    engine.sleep()
    assert len(engine.generate([[5, 6]], Sampling(3, ignore_eos=True))[0].token_ids) == 3
    engine.close()
