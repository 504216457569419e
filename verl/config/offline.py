"""Training on data as they are, without rollouts: what SFT, reward models and preference learning share."""

from dataclasses import dataclass
from typing import Any, Literal

from verl.config.keys import key
from verl.config.model import FSDPConfig, ModelConfig, OptimConfig
from verl.config.trainer import BaseTrainerConfig


@dataclass
class OfflineDataConfig:
    """Where the rows of any offline run come from."""

    train_files: Any = key(None, "parquet or JSON-lines file, or list of them, to train on")
    val_files: Any = key(None, "file, or list of them, to validate on; null turns validation off")
    train_batch_size: int = key(256, "rows per step")
    val_batch_size: int | None = key(None, "rows per validation batch; null takes all at once")
    truncation: Literal["error", "left", "right"] = key(
        "error", "what to do with a longer row: refuse it, or cut there"
    )
    filter_overlong_rows: bool = key(
        False, "before the first step, measure all rows and drop longer ones, with their number in the log"
    )
    chat_template: str | None = key(None, "Jinja chat template that replaces the tokenizer's")
    apply_chat_template_kwargs: dict[str, Any] = key(dict, "extra arguments of the chat template")
    parse_special_tokens: bool = key(
        False,
        "read control tokens in prompts that are strings, and in answers to these, as such; otherwise they are plain "
        "text, as in chats",
    )
    shuffle: bool = key(True, "visit training rows in a seeded random order")
    seed: int | None = key(None, "seed of that order; null means trainer.seed")
    dataloader_num_workers: int = key(0, "processes that tokenize ahead; 0 tokenizes in the driver")
    train_max_samples: int = key(-1, "use only this many training rows; -1 is all")
    val_max_samples: int = key(-1, "use only this many validation rows; -1 is all")


@dataclass
class MicroBatchConfig:
    """How the rows of a step are cut for one forward and backward pass."""

    micro_batch_size_per_gpu: int | None = key(
        None, "rows per forward and backward pass of one process; null takes its share of the step at once"
    )
    use_dynamic_bsz: bool = key(False, "cut micro-batches by tokens instead of by rows")
    max_token_len_per_gpu: int = key(16384, "tokens per micro-batch of one process, with use_dynamic_bsz")


@dataclass
class SFTDataConfig(MicroBatchConfig, OfflineDataConfig):
    messages_key: str = key("messages", "column of the chat; a file without it has prompt_key and response_key")
    prompt_key: str = key("prompt", "column of the prompt: a chat or a string")
    response_key: str = key("response", "column of the response: a string")
    max_length: int = key(1024, "longest row in tokens")


@dataclass
class PairDataConfig(OfflineDataConfig):
    """Rows that hold preferences."""

    prompt_key: str = key(
        "prompt", "column of the prompt: a chat or a string; without it, what both answers begin with"
    )
    chosen_key: str = key("chosen", "column of the better answer: a string, messages, or the whole chat")
    rejected_key: str = key("rejected", "column of the worse answer")
    max_prompt_length: int = key(512, "longest prompt in tokens")
    max_response_length: int = key(512, "longest answer in tokens; truncation=left|right cuts its end")


@dataclass
class RewardDataConfig(MicroBatchConfig, PairDataConfig):
    pass


@dataclass
class PreferenceDataConfig(PairDataConfig):
    completion_key: str = key("completion", "column of an answer that is judged by itself (kto)")
    label_key: str = key("label", "column of its judgement: true for a desirable answer (kto)")


def _optim() -> OptimConfig:
    return OptimConfig(lr=1e-5)


def _trainer(experiment_name: str) -> Any:
    return lambda: BaseTrainerConfig(experiment_name=experiment_name)


@dataclass
class SFTConfig:
    data: SFTDataConfig = key(SFTDataConfig, "chats, or prompts and responses")
    model: ModelConfig = key(ModelConfig, "the language model")
    optim: OptimConfig = key(_optim, "its optimizer")
    fsdp: FSDPConfig = key(FSDPConfig, "how it is sharded")
    trainer: BaseTrainerConfig = key(_trainer("sft"), "the run")


@dataclass
class RewardModelTrainingConfig:
    data: RewardDataConfig = key(RewardDataConfig, "pairs of answers, the better and the worse")
    model: ModelConfig = key(ModelConfig, "a language model, which gets a new head, or a reward model to go on with")
    optim: OptimConfig = key(_optim, "its optimizer")
    fsdp: FSDPConfig = key(FSDPConfig, "how it is sharded")
    trainer: BaseTrainerConfig = key(_trainer("reward_model"), "the run")
