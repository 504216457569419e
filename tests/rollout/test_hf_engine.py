"""The transformers engine on tiny random models of each family."""

import pytest
import torch
from torch import Tensor

from verl.rollout.base import Completion, Sampling
from verl.rollout.hf_engine import HFRolloutEngine, survivors

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "opt")
PROMPTS = [[7, 8, 9], [40], [11, 12, 13, 14, 15, 16, 17], [7, 8, 9], [50, 51], [60, 61, 62], [40, 41], [99, 3]]
EOS = 2
EVERY_TOKEN = tuple(range(128))


def tokens_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def full_log_probs(model: torch.nn.Module, prompt: list[int], response: list[int], temperature: float) -> Tensor:
    """log softmax(logits / temperature) at the response tokens by one plain forward pass, without cache or padding."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers_generate(tiny_model_factory, family: str) -> None:
    model = tiny_model_factory(family)
    completions = HFRolloutEngine(model).generate(PROMPTS, Sampling(12, temperature=0))
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, pad_token_id=0
        )
        assert completion.token_ids == expected[0, len(prompt) :].tolist()
        expected_log_probs = full_log_probs(model, prompt, completion.token_ids, 1.0)
        assert torch.allclose(torch.tensor(completion.log_probs), expected_log_probs, atol=1e-5)


def test_a_sliding_window_is_kept_to(tiny_model_factory) -> None:
    model = tiny_model_factory("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert set(model.config.layer_types) == {"full_attention", "sliding_attention"}
    completions = HFRolloutEngine(model).generate(PROMPTS, Sampling(12, temperature=0, ignore_eos=True))
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        expected = full_log_probs(model, prompt, completion.token_ids, 1.0)
        assert torch.allclose(torch.tensor(completion.log_probs), expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_f1_log_probs_are_the_models_own(tiny_model_factory, family: str) -> None:
    """Row F1: a padded batch gives what each row gives alone; temperature counts, top-p and top-k do not."""
    model = tiny_model_factory(family)
    setting = Sampling(10, temperature=0.7, top_p=0.9, top_k=40)
    for prompt, completion in zip(PROMPTS, HFRolloutEngine(model, seed=3).generate(PROMPTS, setting), strict=True):
        expected = full_log_probs(model, prompt, completion.token_ids, 0.7)
        assert torch.allclose(torch.tensor(completion.log_probs), expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_completion_is_a_function_of_prompt_and_seed(tiny_model_factory, family: str) -> None:
    """Alone, in a batch of 8, in another order, and in micro-batches: the same tokens."""
    setting = Sampling(16, temperature=1.0, top_p=0.95)
    seeds = [10**18 + i for i in range(8)]
    engine = HFRolloutEngine(tiny_model_factory(family))
    together = engine.generate(PROMPTS, setting, seeds)
    alone = [engine.generate([prompt], setting, [seed])[0] for prompt, seed in zip(PROMPTS, seeds, strict=True)]
    backwards = engine.generate(PROMPTS[::-1], setting, seeds[::-1])[::-1]
    cut = HFRolloutEngine(tiny_model_factory(family), seed=77, micro_batch_size=3).generate(PROMPTS, setting, seeds)
    assert tokens_of(together) == tokens_of(alone) == tokens_of(backwards) == tokens_of(cut)
    for other in (alone, backwards, cut):
        for left, right in zip(together, other, strict=True):
            assert left.log_probs == pytest.approx(right.log_probs, abs=1e-5)


def test_h3_samples_differ_between_replicas_and_within_n_and_repeat(tiny_model_factory) -> None:
    """Row H3: 2 replicas, same prompt, temperature 1, n=4: eight different samples; the same again for one seed."""
    setting = Sampling(12, n=4, ignore_eos=True)
    replicas = [HFRolloutEngine(tiny_model_factory(), seed=seed) for seed in (1, 2)]
    first = [tuple(ids) for engine in replicas for ids in tokens_of(engine.generate([PROMPTS[0]], setting))]
    assert len(set(first)) == 8
    assert tokens_of(HFRolloutEngine(tiny_model_factory(), seed=1).generate([PROMPTS[0]], setting)) == [
        list(ids) for ids in first[:4]
    ]
    again = tokens_of(replicas[0].generate([PROMPTS[0]], setting))
    assert not {tuple(ids) for ids in again} & set(first), "a second call without seeds goes on"


def test_samples_of_a_prompt_stand_side_by_side(tiny_model_factory) -> None:
    engine = HFRolloutEngine(tiny_model_factory())
    seeds = list(range(16))
    grouped = tokens_of(engine.generate(PROMPTS, Sampling(6, n=2), seeds))
    repeated = tokens_of(engine.generate([prompt for prompt in PROMPTS for _ in range(2)], Sampling(6), seeds))
    assert grouped == repeated


def test_frequencies_of_the_first_token(tiny_model_factory) -> None:
    """4000 samples: each token's share is within 5 standard deviations of the model's probability."""
    model = tiny_model_factory("llama")
    completions = HFRolloutEngine(model).generate([PROMPTS[0]], Sampling(1, n=4000))
    with torch.no_grad():
        probs = model(torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1)
    seen = torch.tensor([completion.token_ids[0] for completion in completions]).bincount(minlength=128) / 4000
    assert ((seen - probs).abs() <= 5 * (probs * (1 - probs) / 4000).sqrt() + 1e-3).all()


def test_what_ends_a_response(tiny_model_factory) -> None:
    model = tiny_model_factory()
    greedy = Sampling(6, temperature=0, ignore_eos=True)
    [free] = HFRolloutEngine(model).generate([PROMPTS[0]], greedy)
    assert len(free.token_ids) == 6 and free.finish_reason == "length"
    third = free.token_ids[2]
    cut = free.token_ids[: free.token_ids.index(third) + 1]
    [by_stop_id] = HFRolloutEngine(model).generate(
        [PROMPTS[0]], Sampling(6, temperature=0, ignore_eos=True, stop_token_ids=(third,))
    )
    [by_eos] = HFRolloutEngine(model, eos_token_ids=[third]).generate([PROMPTS[0]], Sampling(6, temperature=0))
    assert by_stop_id == by_eos == Completion(cut, by_eos.log_probs, "stop")
    [ignored] = HFRolloutEngine(model, eos_token_ids=[third]).generate([PROMPTS[0]], greedy)
    assert ignored == free


def test_end_ids_come_from_the_generation_config(tiny_model_factory) -> None:
    model = tiny_model_factory()
    assert HFRolloutEngine(model).eos_token_ids == (EOS,)
    model.generation_config.eos_token_id = [5, 6]
    assert HFRolloutEngine(model).eos_token_ids == (5, 6)
    model.generation_config.eos_token_id = None
    assert HFRolloutEngine(model).eos_token_ids == ()


def test_all_rows_end_at_once_and_no_prompts_at_all(tiny_model_factory) -> None:
    engine = HFRolloutEngine(tiny_model_factory())
    completions = engine.generate(PROMPTS, Sampling(9, stop_token_ids=EVERY_TOKEN))
    assert [len(completion.token_ids) for completion in completions] == [1] * len(PROMPTS)
    assert engine.generate([], Sampling(9)) == []


def test_each_distinct_prompt_is_prefilled_once_and_ended_rows_leave(tiny_model_factory) -> None:
    model = tiny_model_factory()
    shapes: list[tuple[int, ...]] = []
    handle = model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    stops = tuple(range(0, 128, 8))
    completions = HFRolloutEngine(model).generate(
        [PROMPTS[0], PROMPTS[1]], Sampling(20, n=4, stop_token_ids=stops), list(range(8))
    )
    handle.remove()
    lengths = [len(completion.token_ids) for completion in completions]
    assert len(set(lengths)) > 2
    assert shapes[0] == (2, 3)
    assert shapes[1:] == [(sum(length > step for length in lengths), 1) for step in range(1, max(lengths))]


@pytest.mark.parametrize(
    ("ended", "rows"),
    [
        ([False, False], [0, 1]),
        ([True, True], []),
        ([True, False, False], [2, 1]),
        ([False, True, False, True, False], [0, 4, 2]),
        ([False, False, True], [0, 1]),
    ],
)
def test_rows_at_the_end_fill_the_gaps(ended: list[bool], rows: list[int]) -> None:
    assert survivors(ended) == rows


def test_micro_batches_are_even_with_long_prompts_first_and_copies_together(tiny_model_factory) -> None:
    engine = HFRolloutEngine(tiny_model_factory(), micro_batch_size=3)
    rows = [[1], [2, 3], [1], [4, 5, 6], [2, 3]]
    assert engine._micro_batches(rows, 4) == [[3, 1, 4], [0, 2]]
    four = HFRolloutEngine(tiny_model_factory(), micro_batch_size=4)
    assert [len(chunk) for chunk in four._micro_batches(rows, 4)] == [3, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16(tiny_model_factory, family: str) -> None:
    model = tiny_model_factory(family).to(torch.bfloat16)
    setting = Sampling(10, top_p=0.9)
    first = HFRolloutEngine(model, seed=5).generate(PROMPTS, setting)
    assert first == HFRolloutEngine(model, seed=5).generate(PROMPTS, setting)
    for prompt, completion in zip(PROMPTS, first, strict=True):
        expected = full_log_probs(model, prompt, completion.token_ids, 1.0)
        assert torch.allclose(torch.tensor(completion.log_probs), expected, atol=0.15)


# ---- errors ----


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], []], "prompt 1 is empty"),
        ([[1], [2, 128]], "prompt 1 has token id 128, but the model's vocabulary has 128 ids"),
        ([[-1]], "prompt 0 has token id -1"),
        ([[1], [5] * 247], "prompt 1 has 247 tokens; with max_tokens=10 that makes 257, but the model's max_position_"),
    ],
)
def test_bad_prompts_name_their_row_and_the_next_call_works(tiny_model_factory, prompts, message: str) -> None:
    engine = HFRolloutEngine(tiny_model_factory(), seed=4)
    with pytest.raises(ValueError, match=message):
        engine.generate(prompts, Sampling(10))
    with pytest.raises(ValueError, match=r"prompt 0 is to end at token id 128 \(stop_token_ids\)"):
        engine.generate([[1]], Sampling(10, stop_token_ids=(2, 128)))
    fresh = HFRolloutEngine(tiny_model_factory(), seed=4).generate(PROMPTS, Sampling(10))
    assert engine.generate(PROMPTS, Sampling(10)) == fresh


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_position_can_be_used(tiny_model_factory, family: str) -> None:
    engine = HFRolloutEngine(tiny_model_factory(family))
    [completion] = engine.generate([[5] * 246], Sampling(10, ignore_eos=True))
    assert len(completion.token_ids) == 10


def test_a_wrong_number_of_seeds(tiny_model_factory) -> None:
    engine = HFRolloutEngine(tiny_model_factory())
    with pytest.raises(ValueError, match=r"3 seeds for 4 completions \(2 prompts with n=2\)"):
        engine.generate(PROMPTS[:2], Sampling(4, n=2), [1, 2, 3])
    with pytest.raises(ValueError, match="micro_batch_size must be at least 1"):
        HFRolloutEngine(tiny_model_factory(), micro_batch_size=0)


def test_weights_that_are_not_finite_name_the_row_and_recover(tiny_model_factory) -> None:
    model = tiny_model_factory()
    engine = HFRolloutEngine(model, micro_batch_size=1)
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.get_input_embeddings().weight[50] = float("nan")
    with pytest.raises(RuntimeError, match="completion 4: the model's logits at new token 0 are not finite"):
        engine.generate(PROMPTS, Sampling(1))
    engine.update_weights(good.items(), version=1)
    assert len(engine.generate(PROMPTS, Sampling(4))) == 8


# ---- weights and sleep ----


def test_new_weights_are_followed(tiny_model_factory) -> None:
    engine, other = HFRolloutEngine(tiny_model_factory(seed=0)), tiny_model_factory(seed=1)
    before = engine.generate(PROMPTS, Sampling(8), range(8))
    engine.update_weights(((name, tensor) for name, tensor in other.named_parameters()), version=7)
    assert engine.version == 7
    after = engine.generate(PROMPTS, Sampling(8), range(8))
    assert after == HFRolloutEngine(other).generate(PROMPTS, Sampling(8), range(8)) != before


def test_generating_asleep_or_without_weights_says_so(tiny_model_factory) -> None:
    model = tiny_model_factory()
    weights = [(name, tensor.clone()) for name, tensor in model.state_dict().items()]
    engine = HFRolloutEngine(model, free_on_sleep=True)
    expected = engine.generate(PROMPTS, Sampling(5), range(8))
    engine.sleep()
    assert not engine.has_weights
    assert all(parameter.untyped_storage().nbytes() == 0 for parameter in model.parameters())
    with pytest.raises(RuntimeError, match=r"sleeps: call wake_up\(\)"):
        engine.generate(PROMPTS, Sampling(5))
    engine.wake_up()
    with pytest.raises(RuntimeError, match=r"no complete weights .* call update_weights\(\)"):
        engine.generate(PROMPTS, Sampling(5))
    engine.update_weights(weights, version=1)
    assert engine.generate(PROMPTS, Sampling(5), range(8)) == expected
    engine.sleep()
    engine.update_weights(weights, version=2)
    engine.wake_up()
    assert engine.generate(PROMPTS, Sampling(5), range(8)) == expected


def test_sleep_on_a_cpu_keeps_the_weights(tiny_model_factory) -> None:
    engine = HFRolloutEngine(tiny_model_factory())
    expected = engine.generate(PROMPTS, Sampling(5), range(8))
    engine.sleep()
    with pytest.raises(RuntimeError, match="sleeps"):
        engine.generate(PROMPTS, Sampling(5))
    engine.wake_up()
    assert engine.has_weights
    assert engine.generate(PROMPTS, Sampling(5), range(8)) == expected
