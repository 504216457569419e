"""Where prompts come from."""

from dataclasses import dataclass
from typing import Any, Literal

from verl.config.keys import key


@dataclass
class CustomClassConfig:
    path: str | None = key(None, "Python file, or module, of a data set class of one's own")
    name: str | None = key(None, "its name; called as cls(data_files, tokenizer=, config=, max_samples=, required=)")


@dataclass
class SamplerConfig:
    name: Literal["random", "length", "mixed", "curriculum"] = key(
        "random",
        "order of training prompts: random; length (a batch holds prompts of near length); mixed (data sources in the "
        "ratios of weights); curriculum (by a column)",
    )
    weights: dict[str, Any] = key(dict, "mixed: share of each data source; sources that are not named share as 1")
    column: str | None = key(None, "curriculum: the column, smallest first, such as extra_info.level")
    class_path: str | None = key(None, "Python file, or module, of a sampler of one's own")
    class_name: str | None = key(None, "its name; called as cls(data_source=dataset, data_config=config)")


@dataclass
class DataConfig:
    train_files: Any = key(
        None, "file, glob or URL (or a list of them) to train on: parquet, arrow, jsonl, json, csv, tsv, txt, generated"
    )
    val_files: Any = key(None, "file, glob or URL (or a list of them) to validate on; null turns validation off")
    train_batch_size: int = key(1024, "prompts (not samples) per step")
    val_batch_size: int | None = key(None, "prompts per validation batch; null takes all at once")
    max_prompt_length: int = key(512, "longest prompt in tokens")
    max_response_length: int = key(512, "longest response in tokens")
    truncation: Literal["error", "left", "right", "middle"] = key("error", "what to do with a longer prompt")
    filter_overlong_prompts: bool = key(False, "drop longer prompts, with their number in the log")
    filter_overlong_prompts_workers: int = key(1, "processes that measure prompts for the filter")
    prompt_key: str = key("prompt", "column of the prompt: a chat (list of role and content) or a string")
    reward_fn_key: str = key("data_source", "column that chooses the scoring rule")
    chat_template: str | None = key(None, "Jinja chat template that replaces the tokenizer's")
    apply_chat_template_kwargs: dict[str, Any] = key(dict, "extra arguments of the chat template")
    system_prompt: str | None = key(None, "first message of every chat that has no system message")
    strings_as_chat: bool = key(False, "take a prompt that is a string for a user's message, not for raw text")
    parse_special_tokens: bool = key(
        False, "read control tokens in prompts that are strings as such; otherwise they are plain text, as in chats"
    )
    tools_key: str = key("tools", "column of the tools that the chat template gets, where there is one")
    custom_cls: CustomClassConfig = key(CustomClassConfig, "a data set class of one's own")
    sampler: SamplerConfig = key(SamplerConfig, "in which order training prompts are visited")
    shuffle: bool = key(True, "visit training prompts in a seeded random order")
    seed: int | None = key(None, "seed of that order; null means trainer.seed")
    return_raw_chat: bool = key(False, "keep the chat itself in the batch as raw_prompt")
    dataloader_num_workers: int = key(0, "processes that tokenize ahead; 0 tokenizes in the driver")
    train_max_samples: int = key(-1, "use only this many training rows; -1 is all")
    val_max_samples: int = key(-1, "use only this many validation rows; -1 is all")
