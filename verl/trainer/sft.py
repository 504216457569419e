"""Supervised fine-tuning: a language model learns to say what the assistant says in the data."""

from typing import Any

from verl.config import ModelConfig, SFTConfig
from verl.data.sft_dataset import SFTDataset
from verl.trainer.offline import OfflineTrainer
from verl.worker.offline import SFTWorker


class SFTTrainer(OfflineTrainer[SFTConfig]):
    """`train/loss` and `val/loss` are the mean of -log p over the tokens that are trained on.

    A checkpoint's folder `model/huggingface` is the model with its tokenizer, for a PPO run or anything else.
    """

    def model_config(self) -> ModelConfig:
        return self.config.model

    def roles(self) -> dict[str, Any]:
        return {self.model_role: SFTWorker}

    def build_dataset(self, files: Any, max_samples: int) -> SFTDataset:
        return SFTDataset(files, self.tokenizer, self.config.data, max_samples=max_samples)
