"""The three kinds of reward function, several at once, and scores of tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from verl.config import CustomRewardFunctionConfig, PPOConfig, RewardConfig, RewardManagerConfig
from verl.config.loader import load_config
from verl.config.reward import OverlongBufferConfig, RewardKwargsConfig
from verl.config.validate import validate
from verl.protocol import DataProto
from verl.rewards import (
    Limits,
    OverlongBuffer,
    RewardFunction,
    RewardManager,
    RewardResult,
    load_reward_manager,
)
from verl.rewards.functions import kind_of

Batches = Callable[..., DataProto]
WORDS = ["one", "two", "three"]


def row_scores(result: RewardResult) -> list[float]:
    return [round(value, 4) for value in result.token_level_scores.sum(-1).tolist()]


def field(data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None) -> float:
    return len(solution_str)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (field, "row"),
        (lambda **kwargs: 0, "row"),
        (lambda data_source, solution_str, ground_truth, extra_info, prompt_str: 0, "row"),
        (lambda prompts, responses: [], "texts"),
        (lambda prompts, responses, scale=1: [], "texts"),
        (lambda *, prompts, responses: [], "texts"),
        (lambda prompts, responses=None: [], "texts"),
        (lambda prompts, responses, /: [], "texts"),
        (lambda prompts, completions: [], "texts"),
        (lambda batch: None, "batch"),
        (lambda data, return_dict=False: None, "batch"),
    ],
)
def test_kinds_are_told_by_the_signature(fn: Any, kind: str) -> None:
    assert kind_of(fn) == kind


@pytest.mark.parametrize(
    "fn",
    [
        lambda: 0,
        lambda a, b, c: 0,
        lambda solution_str, ground_truth: 0,
        lambda response: 0.0,
        lambda completions, prompts: [],
        lambda responses, ground_truths: [],
        lambda completions, **settings: [],
        "f",
    ],
)
def test_what_is_no_reward_function(fn: Any) -> None:
    with pytest.raises(ValueError, match="reward function"):
        kind_of(fn)


def test_names_say_which_texts_are_which(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    batch = responses_batch(["one"], prompts=["a"])
    for fn in (
        lambda responses, prompts: [len(responses[0])],
        lambda *, prompts, responses: [len(responses[0])],
        lambda prompts, responses, /: [len(responses[0])],
        lambda prompts, **texts: [len(texts["responses"][0])],
    ):
        assert row_scores(RewardManager(tiny_tokenizer, fn)(batch)) == [3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_prompts_and_responses(tiny_tokenizer: Any, responses_batch: Batches, num_workers: int) -> None:
    def score(prompts: list[str], responses: list[str]) -> list[Any]:
        return [{"score": len(p), "text": p + r} for p, r in zip(prompts, responses, strict=True)]

    manager = RewardManager(tiny_tokenizer, score, Limits(num_workers=num_workers))
    assert manager.required_columns == ()
    batch = responses_batch(WORDS, prompts=["a", "bb", "ccc"]).select(non_tensor_batch_keys=[])
    result = manager(batch)
    assert row_scores(result) == [1, 2, 3]
    assert result.extras["text"].tolist() == ["aone", "bbtwo", "cccthree"]
    manager.close()


@pytest.mark.parametrize("on_invalid", ["raise", "default", "exclude"])
@pytest.mark.parametrize("value", [[1.0, 2.0], torch.zeros(2), 3.0, "abc", torch.tensor(1.0), None])
def test_d3_wrong_length_is_an_error_with_both(
    tiny_tokenizer: Any, responses_batch: Batches, value: Any, on_invalid: Any
) -> None:
    """D3: the function returns 2 scores for 3."""
    for fn in (lambda prompts, responses: value, lambda batch: value):
        with pytest.raises(ValueError, match="returned (2 scores|.*) for 3 rows: expected 3"):
            RewardManager(tiny_tokenizer, fn, Limits(on_invalid=on_invalid))(responses_batch(WORDS))


def test_a_whole_batch_gives_scores_of_rows_or_of_tokens(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    batch = responses_batch(["a", "bcd"])  # with EOS: 2 and 4 tokens of a width of 5
    assert row_scores(RewardManager(tiny_tokenizer, lambda data: torch.tensor([0.5, -1]))(batch)) == [0.5, -1]
    tokens = torch.tensor([[1, 2, float("nan"), 99, 99], [1, 1, 1, 1, float("inf")]])
    result = RewardManager(tiny_tokenizer, lambda data: tokens)(batch)
    assert result.token_level_scores.tolist() == [[1, 2, 0, 0, 0], [1, 1, 1, 1, 0]]  # nothing under a mask of 0 counts
    named = RewardManager(
        tiny_tokenizer, lambda data: {"reward_tensor": tokens, "reward_extra_info": {"acc": [True, False]}}
    )
    assert named(batch).extras["acc"].tolist() == [True, False]
    with pytest.raises(
        ValueError, match=r"shape \[2, 3\]: expected one per row \[2\] or one per response token \[2, 5\]"
    ):
        RewardManager(tiny_tokenizer, lambda data: torch.zeros(2, 3))(batch)
    with pytest.raises(ValueError, match=r"row 1 .*returned .*nan.* where a finite number"):
        RewardManager(tiny_tokenizer, lambda data: torch.tensor([0, float("nan")]))(batch)


def test_a_function_of_text_may_score_tokens(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    batch = responses_batch(["a", "bcd"])
    result = RewardManager(tiny_tokenizer, lambda prompts, responses: [[0.25, 0.5], {"score": [1, 2, 3, 4]}])(batch)
    assert result.token_level_scores.tolist() == [[0.25, 0.5, 0, 0, 0], [1, 2, 3, 4, 0]]
    with pytest.raises(ValueError, match=r"returned \[1, 2, 3\] where .* one for each of the 4 sampled tokens"):
        RewardManager(tiny_tokenizer, lambda prompts, responses: [[0.25, 0.5], [1, 2, 3]])(batch)


def test_several_functions_add_up_by_weight_and_are_logged_by_name(
    tiny_tokenizer: Any, responses_batch: Batches
) -> None:
    def short(prompts: list[str], responses: list[str]) -> list[dict[str, Any]]:
        return [{"score": len(text) < 4, "words": 1} for text in responses]

    functions = [
        RewardFunction(field, "length", weight=0.1),
        RewardFunction(short, "short", weight=2.0),
        RewardFunction(lambda data: torch.ones(len(data)), "constant", weight=-1.0),
    ]
    result = RewardManager(tiny_tokenizer, functions)(responses_batch(WORDS))
    assert row_scores(result) == [1.3, 1.3, -0.5]
    assert {name: values.tolist() for name, values in result.components.items()} == {
        "length": [3, 3, 5], "short": [1, 1, 0], "constant": [1, 1, 1],
    }  # fmt: skip
    assert result.extras["length"].tolist() == [3, 3, 5]
    assert result.extras["short/words"].tolist() == [1, 1, 1]
    assert result.metrics["reward/length_mean"] == pytest.approx(11 / 3)
    with pytest.raises(ValueError, match=r"several reward functions have the name \['length'\]"):
        RewardManager(tiny_tokenizer, [functions[0], functions[0]])


def test_a_mapping_names_functions(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    result = RewardManager(tiny_tokenizer, {"a": field, "b": lambda prompts, responses: [1] * 3})(
        responses_batch(WORDS)
    )
    assert row_scores(result) == [4, 4, 6]


def test_async_functions_in_the_driver(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    async def row(solution_str: str, **_: Any) -> float:
        return len(solution_str)

    async def texts(prompts: list[str], responses: list[str]) -> list[float]:
        return [1.0] * len(responses)

    async def whole(batch: DataProto) -> torch.Tensor:
        return torch.ones(len(batch))

    functions = {"row": row, "texts": texts, "whole": whole}
    assert row_scores(RewardManager(tiny_tokenizer, functions)(responses_batch(WORDS))) == [5, 5, 7]


def test_a_batch_function_that_hangs_in_the_driver_is_an_error(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    import time

    def stuck(batch: DataProto) -> None:
        time.sleep(5)

    with pytest.raises(
        TimeoutError, match="stuck, which scores whole batches, took longer than reward.batch_timeout_s=0.2"
    ):
        RewardManager(tiny_tokenizer, stuck, Limits(batch_timeout_s=0.2))(responses_batch(WORDS))


@pytest.mark.parametrize("bad", [None, float("nan")])
def test_d4_exclude(tiny_tokenizer: Any, responses_batch: Batches, bad: Any) -> None:
    """D4: [1, None, 3]; the others are compared with each other, and the row belongs to no group."""
    from verl.algorithms.advantages import AdvantageInputs, get_adv_estimator
    from verl.config import AlgorithmConfig

    def score(prompts: list[str], responses: list[str]) -> list[Any]:
        return [1, bad, 3]

    with pytest.raises(ValueError, match="row 1 .*response 'two'.*where a finite number is needed"):
        RewardManager(tiny_tokenizer, score)(responses_batch(WORDS))
    batch = responses_batch(WORDS)
    result = RewardManager(tiny_tokenizer, score, Limits(on_invalid="exclude"))(batch)
    assert result.excluded is not None and result.excluded.tolist() == [False, True, False]
    mask = batch.batch["response_mask"] * ~result.excluded[:, None]
    inputs = AdvantageInputs(result.token_level_scores, mask, group_ids=torch.zeros(3, dtype=torch.int64))
    advantages = get_adv_estimator("grpo")(inputs, AlgorithmConfig(adv_estimator="grpo")).advantages
    assert advantages[:, 0].tolist() == pytest.approx([-0.7071, 0, 0.7071], abs=1e-4)


@pytest.mark.parametrize(
    ("length", "penalty"), [(79, 0), (80, 0), (81, -0.05), (90, -0.5), (95, -0.75), (100, -1), (120, -2)]
)
def test_d5_overlong_penalty(length: int, penalty: float) -> None:
    """D5: max 100, buffer 20, factor 1."""
    assert OverlongBuffer(100, 20)(length) == pytest.approx(penalty)
    assert OverlongBuffer(100, 20, factor=0.5)(length) == pytest.approx(penalty / 2)


@pytest.mark.parametrize("buffer", [0, -1, 101])
def test_d5_impossible_buffers_are_errors_at_the_start(buffer: int) -> None:
    """D5."""
    with pytest.raises(ValueError, match=f"from 1 to 100 tokens .* not {buffer}"):
        OverlongBuffer(100, buffer)


def test_d5_the_dapo_manager(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    """D5, from the config: 4 tokens of 5 with a buffer of 2 cost half the factor; the EOS counts."""
    buffer = OverlongBufferConfig(enable=True, len=2, penalty_factor=0.4, log=True)
    config = RewardConfig(
        reward_manager=RewardManagerConfig("dapo"),
        reward_kwargs=RewardKwargsConfig(buffer),
        custom_reward_function=CustomRewardFunctionConfig(path=__file__, name="field"),
        num_workers=0,
    )
    result = load_reward_manager(config, tiny_tokenizer, max_response_length=5)(responses_batch(["a", "bcd"]))
    assert row_scores(result) == [1, 3 - 0.2]
    assert result.extras["overlong_reward"].tolist() == pytest.approx([0, -0.2])
    assert result.extras["overlong"].tolist() == [False, True]
    assert result.metrics["reward/overlong_mean"] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.reward_kwargs.overlong_buffer_cfg.len=4"], "needs reward.reward_manager.name=dapo, not naive"),
        (["reward.reward_manager.name=dapo"], "len=null: expected from 1 to 512"),
        (
            ["reward.reward_manager.name=dapo", "reward.reward_kwargs.overlong_buffer_cfg.len=600"],
            "len=600: expected from 1",
        ),
    ],
)
def test_d5_the_config_is_checked(overrides: list[str], message: str) -> None:
    """D5."""
    config: PPOConfig = load_config(["reward.reward_kwargs.overlong_buffer_cfg.enable=true", *overrides])
    with pytest.raises(ValueError, match=message):
        validate(config)


def test_functions_from_the_config(tiny_tokenizer: Any, responses_batch: Batches) -> None:
    config = load_config(
        [
            f"reward.functions.length.path={__file__}",
            "reward.functions.length.name=field",
            "reward.functions.length.weight=0.5",
            "reward.functions.rule={weight: 2}",
        ]
    ).reward
    manager = load_reward_manager(config, tiny_tokenizer)
    batch = responses_batch(["2", "22"], data_source=["arithmetic"] * 2)
    assert row_scores(manager(batch)) == [0.5 + 2, 1.0]
    manager.close()
    for override, message in [
        ("reward.functions.x=3", "reward.functions.x=3: expected {path, name, reward_kwargs, weight}"),
        ("reward.functions.x.wait=3", "unknown key reward.functions.x.wait; did you mean 'weight'"),
        ("reward.functions.x.weight=abc", "reward.functions.x.weight='abc': expected a number"),
        ("reward.functions.x.path=/gone.py", "reward.functions.x: .*there is no file"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_reward_manager(load_config([override]).reward, tiny_tokenizer)


def test_of_one_function_the_numbers_beside_its_score_are_the_single_rewards(
    tiny_tokenizer: Any, responses_batch: Batches
) -> None:
    def parts(prompts: list[str], responses: list[str]) -> list[Any]:
        return [{"score": 3.0, "right": True, "short": 2, "answer": "7"}, {"score": 1.0, "right": False}, None]

    limits = Limits(on_invalid="default", default_score=-1.0)
    overlong = OverlongBuffer(max_length=5, buffer=4, factor=1.0, log=True)  # with EOS: 3, 4 and 4 tokens
    found = RewardManager(tiny_tokenizer, parts, limits, overlong)(responses_batch(WORDS)).components
    assert found["right"].tolist() == [1, 0, -1]
    assert found["short"][0] == 2 and found["short"][1].isnan() and found["short"][2] == -1
    assert found["overlong"].tolist() == [-0.5, -0.75, -0.75] and len(found) == 3


def test_of_one_function_without_such_numbers_its_score_is_the_single_reward(
    tiny_tokenizer: Any, responses_batch: Batches
) -> None:
    manager = RewardManager(tiny_tokenizer, lambda prompts, responses: [{"score": 2, "text": "a"}, 3.0, 4.0])
    assert {name: list(v) for name, v in manager(responses_batch(WORDS)).components.items()} == {"score": [2, 3, 4]}
