"""Training of a reward model: the better answer of a pair is to get the higher score."""

from typing import Any

from verl.config import ModelConfig, RewardModelTrainingConfig
from verl.data.preference import PairDataset
from verl.trainer.offline import OfflineTrainer
from verl.worker.offline import RewardTrainingWorker


class RewardModelTrainer(OfflineTrainer[RewardModelTrainingConfig]):
    """`train/*` and `val/*`: the Bradley-Terry loss, and `rewards/accuracies`, the share of pairs in the right order.

    A language model gets a value head. A checkpoint's folder `model/huggingface` is what a PPO run takes for
    `reward.reward_model.model.path`.
    """

    def model_config(self) -> ModelConfig:
        return self.config.model

    def roles(self) -> dict[str, Any]:
        return {self.model_role: RewardTrainingWorker}

    def build_dataset(self, files: Any, max_samples: int) -> PairDataset:
        return PairDataset(files, self.tokenizer, self.config.data, max_samples=max_samples)
