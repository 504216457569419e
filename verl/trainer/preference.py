"""Preference learning without rollouts: DPO, IPO, SimPO on pairs of answers, KTO on answers that are judged alone."""

from typing import Any

import numpy as np
import torch

from verl.algorithms.masked import masked_sum
from verl.algorithms.preference_losses import LabelledResponses, get_preference_loss
from verl.config import ModelConfig, PreferenceConfig
from verl.data.preference import JudgedDataset, PairDataset
from verl.protocol import DataProto
from verl.trainer.offline import OfflineTrainer
from verl.trainer.steps import for_workers
from verl.worker.preference import REFERENCE, PreferenceReferenceWorker, PreferenceWorker


class PreferenceTrainer(OfflineTrainer[PreferenceConfig]):
    """`algorithm.name` chooses the loss, and with it the kind of data and whether a reference is needed.

    `train/*` and `val/*`: `loss`, `rewards/chosen`, `rewards/rejected`, `rewards/margins`, `rewards/accuracies`, and
    `kl_point` of KTO. The reference is the model at `actor_rollout_ref.model.path`, also in a run that is resumed.
    """

    model_role = "actor"
    ref_role = "ref"

    def __init__(self, config: PreferenceConfig, *args: Any, **kwargs: Any) -> None:
        self.loss = get_preference_loss(config.algorithm.name)
        self.takes_labels = self.loss.takes is LabelledResponses
        self._known: dict[str, torch.Tensor] = {}
        super().__init__(config, *args, **kwargs)

    def model_config(self) -> ModelConfig:
        return self.config.actor_rollout_ref.model

    def roles(self) -> dict[str, Any]:
        roles: dict[str, Any] = {self.model_role: PreferenceWorker}
        if self.loss.needs_reference:
            roles[self.ref_role] = PreferenceReferenceWorker
        return roles

    def build_dataset(self, files: Any, max_samples: int) -> PairDataset | JudgedDataset:
        dataset = JudgedDataset if self.takes_labels else PairDataset
        return dataset(files, self.tokenizer, self.config.data, max_samples=max_samples)

    def mini_batch_size(self) -> int:
        size = self.config.actor_rollout_ref.actor.ppo_mini_batch_size
        assert size is not None
        return size

    def prepare(self, rows: DataProto, split: str, timings: dict[str, float]) -> DataProto:
        """Add the mismatched answers of KTO, and the reference's log-probs of whole answers."""
        if self.takes_labels:
            rows = with_mismatched(rows, self.mini_batch_size() if split == "train" else len(rows))
        if not self.loss.needs_reference:
            return rows
        if split in self._known:
            reference = self._known[split][rows.batch["index"]]
        else:
            with self.phase("ref_log_prob", timings, self.worker_groups[self.ref_role]):
                reference = self._ask_reference(rows)
        return rows.union(DataProto.from_dict({REFERENCE: reference}))

    def before_training(self) -> None:
        """Ask the reference about all rows, if that is wanted, and then let go of it."""
        if not (self.config.algorithm.precompute_ref_log_probs and self.loss.needs_reference):
            return
        size = self.config.data.train_batch_size
        for split, dataset in (("train", self.train_dataset), ("val", self.val_dataset)):
            if dataset is not None:
                batches = map(DataProto.from_single_dict, self._loader(dataset, size, train=False))
                self._known[split] = torch.cat([self._ask_reference(rows) for rows in batches])
        self.worker_groups[self.ref_role].release()

    def _ask_reference(self, rows: DataProto) -> torch.Tensor:
        """[B, 2]: log p of each whole answer under the reference."""
        columns = ("input_ids", "attention_mask", "response_mask")
        sent = for_workers(rows, columns=columns, balance_batch=self.config.trainer.balance_batch)
        output = self.worker_groups[self.ref_role].compute_ref_log_prob(sent)
        return masked_sum(output.batch["ref_log_probs"], rows.batch["response_mask"], dim=-1)


def with_mismatched(rows: DataProto, mini_batch_size: int) -> DataProto:
    """Rows of one sequence [B, ...] as rows of two [B, 2, ...]: the answer, and another row's answer to its prompt.

    KTO's reference point is measured on the second ones (arXiv:2402.01306). Within each mini-batch the answers move on
    by so many rows that the fewest meet their own prompt again; these few get a mask of 0. So every answer is used
    once, and the point says nothing about the order of the rows.
    """
    ids, attention, mask = (rows.batch[key] for key in ("input_ids", "attention_mask", "response_mask"))
    width = ids.shape[1] - mask.shape[1]
    texts = [str(row[seen].tolist()) for row, seen in zip(ids[:, :width], attention[:, :width].bool(), strict=True)]
    prompts = np.unique(texts, return_inverse=True)[1]
    others = np.arange(len(rows))
    for start in range(0, len(rows), mini_batch_size):
        part = slice(start, start + mini_batch_size)
        others[part] = np.roll(others[part], -_best_shift(prompts[part]))
    lonely = torch.from_numpy(prompts == prompts[others])
    mismatched = {
        "input_ids": torch.cat([ids[:, :width], ids[others, width:]], dim=1),
        "attention_mask": torch.cat([attention[:, :width], attention[others, width:]], dim=1),
        "response_mask": mask[others].masked_fill(lonely[:, None], 0),
    }
    pairs = {key: torch.stack([rows.batch[key], column], dim=1) for key, column in mismatched.items()}
    rest = rows.select(batch_keys=[key for key in map(str, rows.batch.keys()) if key not in pairs])
    return rest.union(DataProto.from_dict(pairs))


def _best_shift(prompts: np.ndarray) -> int:
    """The smallest shift of the rows that brings the fewest of them to a row with the same prompt."""
    return min(range(len(prompts)), key=lambda shift: int((prompts == np.roll(prompts, -shift)).sum()))
