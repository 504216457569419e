"""vLLM beside the trainer: the same policy in both engines, and no request that harms another."""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.conftest import build_tiny_model
from verl.config import FSDPConfig
from verl.engine.base import MicroBatching
from verl.engine.fsdp import FSDPEngine
from verl.models.policy import PolicyModel
from verl.rollout.base import Completion, Sampling
from verl.rollout.batching import left_pad, prompts_from, responses_to_batch
from verl.rollout.hf_engine import HFRolloutEngine
from verl.rollout.weight_sync import check_weights, generating, sync_weights
from verl.utils import memory

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here", allow_module_level=True)

from verl.rollout.vllm_engine import vLLMRolloutEngine
from verl.rollout.vllm_setup import VLLMSettings, cpu_kv_cache_bytes, process_kept, unsupported_reason

# Attention heads of 32, the smallest that vLLM takes on a CPU.
MODERN = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": MODERN,
    "qwen2": {**MODERN, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 64, "n_head": 2},
}
PROMPTS = [[5, 9, 17], [40, 41, 42, 43, 44, 45, 46], list(range(10, 80)), [7]]
LENGTH = 12
SAMPLINGS = (
    Sampling(LENGTH, temperature=1.0),
    Sampling(LENGTH, temperature=0.7),
    Sampling(LENGTH, temperature=0.001),
    Sampling(LENGTH, temperature=0.7, top_p=0.8),
    Sampling(LENGTH, temperature=1.3, top_k=5),
    Sampling(LENGTH, temperature=0.7, top_k=20, top_p=0.9),
    Sampling(LENGTH, temperature=0.0),
    Sampling(LENGTH, ignore_eos=True, stop_token_ids=(9, 17)),
)


def engine_of(model: Any, **settings: Any) -> vLLMRolloutEngine:
    return vLLMRolloutEngine.for_module(
        model, torch.float32, "cpu", seed=0, settings=VLLMSettings(**{"max_model_len": 128, **settings})
    )


def weights_of(model: Any) -> list[tuple[str, torch.Tensor]]:
    return list(model.named_parameters())


@pytest.fixture(scope="module")
def model() -> Any:
    return build_tiny_model("llama", **MODERN)


@pytest.fixture(scope="module")
def shared(model: Any) -> Iterator[vLLMRolloutEngine]:
    engine = engine_of(model)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: vLLMRolloutEngine, model: Any) -> vLLMRolloutEngine:
    shared.update_weights(weights_of(model), version=1)
    return shared


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


# ---- two engines, one policy ----


def disagreement(trainer: FSDPEngine, engine: vLLMRolloutEngine, sampling: Sampling) -> float:
    """The largest difference between the log-probs of both engines for what the rollout sampled."""
    ids, mask = left_pad(PROMPTS, 70, 0)
    prompts = TensorDict({"input_ids": ids, "attention_mask": mask}, batch_size=[len(PROMPTS)])
    batch = responses_to_batch(prompts, engine.generate(prompts_from(prompts), sampling), LENGTH, 0)
    computed = trainer.forward(batch, MicroBatching(), temperature=sampling.temperature or 1.0)["log_probs"]
    difference = (computed - batch["rollout_log_probs"])[batch["response_mask"].bool()]
    assert difference.numel() >= len(PROMPTS)
    return float(difference.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_rollout_and_trainer_agree_before_and_after_an_update(family: str) -> None:
    module = PolicyModel(build_tiny_model(family, **FAMILIES[family]))
    trainer = FSDPEngine(module, FSDPConfig(), None, "cpu", None)
    engine = engine_of(module.hf_model)
    try:
        sync_weights(trainer.named_weights(), engine, 0, bucket_bytes=4096)
        for sampling in SAMPLINGS:
            assert disagreement(trainer, engine, sampling) < 1e-3, sampling
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        assert disagreement(trainer, engine, Sampling(LENGTH)) > 1e-2  # without a sync it shows
        sync_weights(trainer.named_weights(), engine, 1, bucket_bytes=10**9)
        assert disagreement(trainer, engine, Sampling(LENGTH)) < 1e-3
        check_weights(trainer.named_weights(), engine, torch.float32)
        assert engine.version == 1
    finally:
        held = weakref.ref(engine._runner.get_model())
        engine.close()
        gc.collect()
        assert held() is None


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_both_engines_make_the_same_of_prompt_and_seed(
    engine: vLLMRolloutEngine, model: Any, sampling: Sampling
) -> None:
    sampling, seeds = replace(sampling, n=3), range(3 * len(PROMPTS))
    expected = HFRolloutEngine(model).generate(PROMPTS, sampling, seeds)
    found = engine.generate(PROMPTS, sampling, seeds)
    assert tokens(found) == tokens(expected)
    assert [made.finish_reason for made in found] == [made.finish_reason for made in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def test_greedy_takes_the_most_likely_token(engine: vLLMRolloutEngine, model: Any) -> None:
    for prompt, made in zip(PROMPTS, engine.generate(PROMPTS, Sampling(LENGTH, temperature=0.0)), strict=True):
        logits = model(torch.tensor([prompt + made.token_ids])).logits[0, len(prompt) - 1 : -1]
        assert made.token_ids == logits.argmax(-1).tolist()


def test_top_k_and_top_p_keep_what_they_say(engine: vLLMRolloutEngine, model: Any) -> None:
    prompt = PROMPTS[1]
    order = model(torch.tensor([prompt])).logits[0, -1].argsort(descending=True).tolist()
    for sampling in (Sampling(1, top_k=3, n=40), Sampling(1, top_k=3, top_p=0.999, n=40)):
        assert {made.token_ids[0] for made in engine.generate([prompt], sampling)} <= set(order[:3])
    assert {made.token_ids[0] for made in engine.generate([prompt], Sampling(1, top_p=1e-6, n=9))} == {order[0]}


# ---- seeds, lengths, ends ----


def test_a_completion_follows_from_prompt_and_seed_alone(engine: vLLMRolloutEngine) -> None:
    sampling = Sampling(LENGTH, ignore_eos=True)
    together = engine.generate(PROMPTS, sampling, seeds=[1, 2, 3, 4])
    alone = [engine.generate([prompt], sampling, [seed])[0] for prompt, seed in zip(PROMPTS, (1, 2, 3, 4), strict=True)]
    assert tokens(together) == tokens(alone)
    assert tokens(engine.generate(PROMPTS[::-1], sampling, seeds=[4, 3, 2, 1])) == tokens(alone)[::-1]
    # also of the upper half of a seed, which torch's generator ignores
    assert tokens(engine.generate(PROMPTS, sampling, seeds=[1 + 2**40, 2, 3, 4]))[0] != tokens(alone)[0]


def test_samples_and_calls_without_seeds_differ(engine: vLLMRolloutEngine) -> None:
    sampling = Sampling(LENGTH, n=4, ignore_eos=True)
    first, second = (engine.generate(PROMPTS[:2], sampling) for _ in range(2))
    assert len(first) == 8
    assert len({tuple(row) for row in tokens(first) + tokens(second)}) == 16


def test_generation_leaves_the_global_generators_alone(engine: vLLMRolloutEngine) -> None:
    before = torch.get_rng_state()
    engine.generate(PROMPTS, Sampling(LENGTH))
    assert torch.equal(torch.get_rng_state(), before)


def test_ends(engine: vLLMRolloutEngine) -> None:
    free = engine.generate([PROMPTS[0]], Sampling(LENGTH, temperature=0.0, ignore_eos=True))[0]
    assert len(free.token_ids) == LENGTH and free.finish_reason == "length"
    end = free.token_ids[4]
    first = free.token_ids.index(end)
    stopped = engine.generate([PROMPTS[0]], Sampling(LENGTH, temperature=0.0, ignore_eos=True, stop_token_ids=(end,)))[
        0
    ]
    assert stopped.token_ids == free.token_ids[: first + 1] and stopped.finish_reason == "stop"
    # 2 is the end token of the model's generation config
    ended = engine.generate([PROMPTS[0]], Sampling(100, n=20))
    assert all((made.finish_reason == "stop") == (made.token_ids[-1] == 2) for made in ended)
    assert all(2 not in made.token_ids[:-1] for made in ended)
    assert {made.finish_reason for made in ended} == {"stop", "length"}
    endless = engine.generate([PROMPTS[0]], Sampling(100, n=20, ignore_eos=True))
    assert all(len(made.token_ids) == 100 for made in endless) and any(2 in made.token_ids for made in endless)


# ---- requests that come and go ----


def finish(engine: vLLMRolloutEngine) -> dict[str, Completion]:
    done: dict[str, Completion] = {}
    while engine.num_running:
        done.update(engine.step())
    return done


def test_requests_join_and_leave_while_others_run(engine: vLLMRolloutEngine) -> None:
    sampling = Sampling(LENGTH, ignore_eos=True)
    expected = tokens(engine.generate(PROMPTS, sampling, seeds=[1, 2, 3, 4]))
    engine.submit("a", PROMPTS[0], sampling, seed=1)
    engine.submit("b", PROMPTS[1], sampling, seed=2)
    assert [engine.step() for _ in range(3)] == [[], [], []]
    engine.submit("c", PROMPTS[2], sampling, seed=3)
    engine.abort("b")
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.submit("a", PROMPTS[0], sampling, seed=1)
    with pytest.raises(RuntimeError, match="2 submitted requests are running"):
        engine.generate(PROMPTS, sampling)
    with pytest.raises(RuntimeError, match="2 requests are running"):
        engine.sleep()
    done = finish(engine)
    assert {name: made.token_ids for name, made in done.items()} == {"a": expected[0], "c": expected[2]}
    with pytest.raises(KeyError):
        engine.abort("a")


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 2},  # the prompt of 70 tokens takes several passes
        {"engine_kwargs": {"num_gpu_blocks_override": 7}},  # 6 blocks of 32 tokens: some requests must start anew
    ],
    ids=["pieces", "preempted"],
)
def test_prompts_in_pieces_and_requests_that_start_anew_change_nothing(
    engine: vLLMRolloutEngine, model: Any, settings: dict[str, Any]
) -> None:
    sampling, seeds = Sampling(40, temperature=0.7, n=2, ignore_eos=True), range(2 * len(PROMPTS))
    expected = tokens(engine.generate(PROMPTS, sampling, seeds))
    other = engine_of(model, **settings)
    try:
        other.update_weights(weights_of(model), version=1)
        assert tokens(other.generate(PROMPTS, sampling, seeds)) == expected
    finally:
        other.close()


def test_requests_of_different_samplings_run_together(engine: vLLMRolloutEngine) -> None:
    expected = [engine.generate([PROMPTS[1]], sampling, [8])[0] for sampling in SAMPLINGS]
    for i, sampling in enumerate(SAMPLINGS):
        engine.submit(str(i), PROMPTS[1], sampling, seed=8)
    done = finish(engine)
    assert [done[str(i)].token_ids for i in range(len(SAMPLINGS))] == tokens(expected)


def test_running_requests_go_on_with_new_weights(engine: vLLMRolloutEngine, model: Any) -> None:
    sampling = Sampling(LENGTH, temperature=0.0, ignore_eos=True)
    engine.submit("a", PROMPTS[1], sampling, seed=1)
    for _ in range(4):
        engine.step()
    other = build_tiny_model("llama", seed=5, **MODERN)
    engine.update_weights(weights_of(other), version=2)
    made = finish(engine)["a"].token_ids
    logits = [m(torch.tensor([PROMPTS[1] + made])).logits[0, len(PROMPTS[1]) - 1 : -1] for m in (model, other)]
    old, new = (scores.argmax(-1).tolist() for scores in logits)
    changed = next(i for i in range(LENGTH) if made[i] != old[i])
    assert 3 <= changed <= 4 and made[changed:] == new[changed:]


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], Sampling(5), "prompt 1 is empty"),
        ([3, 128], Sampling(5), "prompt 1 has token id 128, but the model's vocabulary has 128 ids"),
        ([3, -1], Sampling(5), "prompt 1 has token id -1"),
        ([3] * 124, Sampling(5), "prompt 1 has 124 tokens; with max_tokens=5 that makes 129, but max_model_len is 128"),
        ([3], Sampling(5, stop_token_ids=(2, 128)), r"prompt 0 is to end at token id 128 \(stop_token_ids\), but the"),
    ],
)
def test_a_bad_request_is_refused_and_the_next_call_works(
    engine: vLLMRolloutEngine, prompt: list[int], sampling: Sampling, message: str
) -> None:
    good = [PROMPTS[0]]
    expected = engine.generate(good, Sampling(5), seeds=[1])
    with pytest.raises(ValueError, match=message):
        engine.generate([PROMPTS[0], prompt], sampling)
    assert engine.num_running == 0
    assert engine.generate(good, Sampling(5), seeds=[1]) == expected


def test_the_number_of_seeds(engine: vLLMRolloutEngine) -> None:
    with pytest.raises(ValueError, match=r"3 seeds for 4 completions \(2 prompts with n=2\)"):
        engine.generate(PROMPTS[:2], Sampling(5, n=2), seeds=[1, 2, 3])
    with pytest.raises(ValueError, match="one completion, not n=2"):
        engine.submit("a", PROMPTS[0], Sampling(5, n=2), seed=1)
    assert engine.generate([], Sampling(5)) == []


def test_after_a_failed_step_the_next_call_works(engine: vLLMRolloutEngine) -> None:
    sampling = Sampling(LENGTH, ignore_eos=True)
    expected = engine.generate(PROMPTS, sampling, seeds=[1, 2, 3, 4])
    passes = 0

    def fail(*_: Any) -> None:
        nonlocal passes
        passes += 1
        if passes in (1, 5):
            raise OSError("out of luck")

    hook = engine._runner.get_model().model.norm.register_forward_pre_hook(fail)
    try:
        for _ in range(2):  # in the prompts' pass, then amid decoding
            with pytest.raises(OSError, match="out of luck"):
                engine.generate(PROMPTS, sampling, seeds=[1, 2, 3, 4])
            assert engine.num_running == 0
    finally:
        hook.remove()
    assert engine.generate(PROMPTS, sampling, seeds=[1, 2, 3, 4]) == expected


def test_logits_that_are_not_finite(engine: vLLMRolloutEngine, model: Any) -> None:
    broken = [(name, torch.full_like(weight, float("nan"))) for name, weight in weights_of(model)]
    engine.update_weights(broken, version=2)
    with pytest.raises(RuntimeError, match="logits at new token 0 are not finite"):
        engine.generate(PROMPTS, Sampling(5))
    engine.update_weights(weights_of(model), version=3)
    assert len(engine.generate(PROMPTS, Sampling(5))) == 4


# ---- weights and memory ----


def test_every_weight_can_be_compared(engine: vLLMRolloutEngine, model: Any) -> None:
    assert max(engine.weight_errors(weights_of(model)).values()) < 1e-6
    for name, weight in weights_of(model):
        changed = weight.detach().clone()
        changed.view(-1)[-1] += 1.0
        assert engine.weight_errors([(name, changed)])[name] > 1e-2, name
    with pytest.raises(RuntimeError, match=r"2 weights .* nan: not found\): .*model.norm.weight"):
        check_weights(
            [("nothing.weight", torch.ones(3)), ("model.norm.weight", torch.zeros(64))], engine, torch.float32
        )


def test_an_incomplete_update_ends_the_engine(model: Any) -> None:
    engine = engine_of(model)
    try:
        with pytest.raises(RuntimeError, match=r"no weights yet: call update_weights\(\)"):
            engine.generate(PROMPTS, Sampling(5))
        weights = weights_of(model)
        with pytest.raises(ValueError, match="1 of the rollout model's 21 weights were not given: model.norm.weight"):
            engine.update_weights([item for item in weights if item[0] != "model.norm.weight"], version=1)
        for call in (
            lambda: engine.update_weights(weights, version=2),
            lambda: engine.generate(PROMPTS, Sampling(5)),
        ):
            with pytest.raises(
                RuntimeError, match="cannot be used: an update of its weights failed midway with ValueErr"
            ):
                call()
    finally:
        engine.close()
        engine.close()


def test_sleep_frees_the_kv_cache(engine: vLLMRolloutEngine) -> None:
    expected = engine.generate(PROMPTS, Sampling(LENGTH), seeds=[1, 2, 3, 4])
    caches = engine._runner.kv_caches
    held = sum(cache.untyped_storage().nbytes() for cache in caches)
    engine.sleep()
    engine.sleep()
    assert held > 0 and sum(cache.untyped_storage().nbytes() for cache in caches) == 0
    assert engine.has_weights
    with pytest.raises(RuntimeError, match=r"sleeps \(kv_cache\): call wake_up\(\)"):
        engine.generate(PROMPTS, Sampling(5))
    engine.wake_up(["weights"])
    engine.wake_up(["kv_cache"])
    assert sum(cache.untyped_storage().nbytes() for cache in caches) == held
    assert engine.generate(PROMPTS, Sampling(LENGTH), seeds=[1, 2, 3, 4]) == expected


class Recorder:
    """A rollout engine that writes down what it is asked."""

    def __init__(self, engine: vLLMRolloutEngine, calls: list[Any]) -> None:
        self.engine, self.calls = engine, calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.engine, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args[0]) if name == "wake_up" else name)
            return value(*args, **kwargs)

        return call


@pytest.mark.parametrize("lost", [True, False])
def test_the_order_in_which_trainer_and_rollout_share_memory(engine: vLLMRolloutEngine, model: Any, lost: bool) -> None:
    calls: list[Any] = []
    recorder: Any = Recorder(engine, calls)

    def sync() -> None:
        sync_weights(weights_of(model), recorder, 5, bucket_bytes=10**6)

    engine.sleep()
    engine.has_weights = not lost  # on CUDA its sleep loses them
    with generating(recorder, sync):
        recorder.generate(PROMPTS, Sampling(5))
    expected = [("wake_up", ["weights"]), "update_weights", ("wake_up", ["kv_cache"]), "generate", "sleep"]
    assert calls == (expected if lost else [call for call in expected if call != "update_weights"])
    engine.wake_up()


def test_memory_does_not_grow_with_updates(engine: vLLMRolloutEngine, model: Any) -> None:
    import psutil

    def cycle() -> int:
        engine.wake_up()
        engine.update_weights(weights_of(model), version=1)
        engine.generate(PROMPTS, Sampling(4, n=4))
        engine.sleep()
        return int(psutil.Process().memory_info().rss)

    start = [cycle() for _ in range(20)][-1]
    assert [cycle() for _ in range(40)][-1] - start < 8 * 2**20
    engine.wake_up()


# ---- starting ----


def test_the_kv_cache_fits_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 layers of 1 head of 32, keys and values, fp32: 16 KiB a block of 32 tokens; 5 blocks for 128 tokens."""

    class Shape:
        max_model_len, dtype = 128, torch.float32
        get_num_layers = staticmethod(lambda parallel: 2)
        get_num_kv_heads = staticmethod(lambda parallel: 1)
        get_head_size = staticmethod(lambda: 32)

    config: Any = SimpleNamespace(
        model_config=Shape,
        parallel_config=None,
        cache_config=SimpleNamespace(block_size=32, gpu_memory_utilization=0.5),
        scheduler_config=SimpleNamespace(max_num_seqs=64),
    )
    block = 2 * 2 * 32 * 4 * 32
    assert cpu_kv_cache_bytes(config) == 64 * 5 * block
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{200 * block}\n")
    (tmp_path / "memory.current").write_text(f"{150 * block}\n")
    (tmp_path / "memory.stat").write_text(f"anon 0\ninactive_file {50 * block}\nactive_file 0\n")
    assert cpu_kv_cache_bytes(config) == 50 * block  # half of what is left
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu_kv_cache_bytes(config) == 64 * 5 * block


def test_the_process_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "7")
    state, threads = torch.get_rng_state(), torch.set_num_threads
    with process_kept():
        os.environ["LOCAL_WORLD_SIZE"] = "1"
        os.environ["SOMETHING_NEW"] = "1"
        torch.rand(3)
        torch.set_num_threads = print  # type: ignore[assignment]
    assert os.environ["LOCAL_WORLD_SIZE"] == "7" and "SOMETHING_NEW" not in os.environ
    assert torch.equal(torch.get_rng_state(), state) and torch.set_num_threads is threads


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_num_sequences": 3}, r"engine_kwargs.vllm.max_num_sequences: .* nearest one is 'max_num_\w+'"),
        ({"max_num_seqs": 3}, "engine_kwargs.vllm.max_num_seqs is set by a key of its own"),
        ({"spec_method": "ngram"}, "engine_kwargs.vllm.spec_method is not supported: vLLM's sampler does not run"),
    ],
)
def test_engine_arguments(model: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine_of(model, engine_kwargs=arguments)


def test_a_length_beyond_the_model(model: Any) -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        engine_of(model, max_model_len=257)


@pytest.mark.parametrize(
    ("build", "size", "reason"),
    [
        (lambda: build_tiny_model("llama", **MODERN), 1, None),
        (lambda: build_tiny_model("llama", **MODERN), 2, None),
        (lambda: build_tiny_model("llama"), 1, "attention heads have size 8, and vLLM on a CPU takes 32, 64"),
        (lambda: build_tiny_model("llama", **MODERN), 3, "2 attention heads .* cannot be split over tensor parallel 3"),
        (lambda: torch.nn.Linear(2, 2), 1, "transformers config, and Linear has none"),
    ],
)
def test_which_models_vllm_runs(build: Callable[[], Any], size: int, reason: str | None) -> None:
    found = unsupported_reason(build(), "cpu", size)
    assert found is None if reason is None else found is not None and pytest.importorskip("re").search(reason, found)


def test_an_unknown_architecture(model: Any) -> None:
    class OfMyOwn(type(model)):  # type: ignore[misc]
        pass

    own = OfMyOwn(model.config)
    assert unsupported_reason(own, "cpu") == "vLLM has no OfMyOwn"
    with pytest.raises(ValueError, match="vLLM cannot run this model: vLLM has no OfMyOwn; use rollout.name=hf"):
        engine_of(own)
