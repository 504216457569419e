"""Where scores come from: rules, and optionally a reward model."""

from dataclasses import dataclass
from typing import Any, Literal

from verl.config.keys import key
from verl.config.model import FSDPConfig, ModelConfig


@dataclass
class CustomRewardFunctionConfig:
    path: str | None = key(None, "Python file, or module, that holds the function")
    name: str = key("compute_score", "the function's name: fn(data_source, solution_str, ground_truth, extra_info)")
    reward_kwargs: dict[str, Any] = key(dict, "extra keyword arguments of the function")


@dataclass
class RewardManagerConfig:
    name: Literal["naive", "dapo"] = key(
        "naive", "how scores are collected; dapo adds a penalty for overlong responses"
    )


@dataclass
class OverlongBufferConfig:
    enable: bool = key(False, "penalise responses that come near the longest length (reward_manager.name=dapo)")
    len: int | None = key(None, "tokens before the longest length over which the penalty grows")
    penalty_factor: float = key(1.0, "the penalty, as a positive number, at the longest length")
    log: bool = key(False, "log the penalty of each row")


@dataclass
class RewardKwargsConfig:
    overlong_buffer_cfg: OverlongBufferConfig = key(OverlongBufferConfig, "penalty for overlong responses")
    max_resp_len: int | None = key(None, "that longest length in tokens; null means data.max_response_length")


@dataclass
class JudgeConfig:
    base_url: str | None = key(None, "an OpenAI-compatible server, such as http://localhost:8000/v1; null is no judge")
    model: str | None = key(None, "the judging model's name on the server")
    prompt: str = key(
        "Question:\n{prompt}\n\nReference answer:\n{ground_truth}\n\nAnswer:\n{response}\n\n"
        "How good is the answer? Reply with a number from 0 (wrong) to 1 (right) and nothing else.",
        "what the judge is asked; {prompt}, {response} and {ground_truth} are filled in; its last number is the score",
    )
    rate: float = key(10.0, "requests per second")
    concurrency: int = key(16, "requests at the same time")
    retries: int = key(4, "further tries after a failed request")
    timeout_s: float = key(30.0, "limit of one request")
    max_tokens: int = key(64, "longest reply of the judge")
    temperature: float = key(0.0, "sampling temperature of the judge")
    weight: float = key(1.0, "weight of the judge's score beside the others")
    cache: str | None = key(None, "JSON lines file of replies that is read and added to; null caches in memory only")
    api_key_env: str = key("OPENAI_API_KEY", "environment variable that holds the server's key, if it wants one")


@dataclass
class RewardModelConfig:
    enable: bool = key(False, "score responses with a reward model as well")
    model: ModelConfig = key(ModelConfig, "the reward model: a sequence classifier or a value-headed model")
    fsdp: FSDPConfig = key(FSDPConfig, "how the reward model is sharded")
    micro_batch_size_per_gpu: int | None = key(None, "samples per forward pass of one process")
    max_length: int | None = key(None, "longest text in tokens, cut on the left; null means the model's own limit")
    text_format: Literal["auto", "chat", "pair", "text"] = key(
        "auto",
        "how another tokenizer reads prompt and response: in its chat template, as a pair of texts, or as one text; "
        "auto takes the template if there is one, the pair if it has a separator token",
    )
    text_end: Literal["template", "turn"] = key(
        "template",
        "where a finished response ends in that template: as the template writes it, or at the token that ends a turn, "
        "as main_reward_model trains; a response that was cut ends with its last word",
    )
    weight: float = key(1.0, "weight of the reward model's score")


@dataclass
class RewardConfig:
    custom_reward_function: CustomRewardFunctionConfig = key(CustomRewardFunctionConfig, "the user's own rule")
    functions: dict[str, Any] = key(
        dict,
        "several rules instead of one, by name: {<name>: {path, name, weight, reward_kwargs}}; scores are added up",
    )
    judge: JudgeConfig = key(JudgeConfig, "a language model on a server that scores responses")
    reward_manager: RewardManagerConfig = key(RewardManagerConfig, "how scores are collected")
    reward_kwargs: RewardKwargsConfig = key(RewardKwargsConfig, "settings of the reward manager")
    num_workers: int = key(1, "processes that score; 0 scores in the driver, where nothing that hangs can be stopped")
    timeout_s: float = key(30.0, "seconds that scoring one row may take")
    batch_timeout_s: float = key(600.0, "seconds that a function of the whole batch may take")
    on_invalid: Literal["raise", "default", "exclude"] = key(
        "raise",
        "what becomes of a row without a score (error, time limit, no finite number): an error that names it, "
        "default_score, or no training on it",
    )
    default_score: float = key(0.0, "the score of such rows with on_invalid=default")
    launch_async: bool = key(False, "compute log-probs while rewards are computed")
    reward_model: RewardModelConfig = key(RewardModelConfig, "an optional learned scorer")
    rule_weight: float = key(1.0, "weight of the rule's score beside a reward model; 0 does not call the rule")
