"""From scored samples to preferences: the samples of a prompt, ranked by their scores.

    pairs    the best and the worst sample of each prompt                 dpo, ipo, simpo
    judged   each sample, desirable if it scores above its prompt's mean  kto

Prompts whose samples score alike teach no preference and are left out.
"""

import numpy as np
import torch

from verl.algorithms.preference_losses import LabelledResponses, get_preference_loss
from verl.protocol import DataProto
from verl.trainer.preference import with_mismatched
from verl.trainer.steps import group_numbers, informative_groups

SEQUENCE = ("input_ids", "attention_mask", "response_mask")
"""Columns of the rows that are learned from."""


def takes_samples(loss: str) -> bool:
    """Whether a preference loss learns from judged samples instead of pairs."""
    return get_preference_loss(loss).takes is LabelledResponses


def preference_rows(batch: DataProto, loss: str, mini_batch_size: int) -> DataProto:
    """Rows [N, 2, ...] as `verl.worker.preference` takes them; 0 rows when no prompt has a preference.

    Args:
        batch: scored samples with `uid`.
        loss: a preference loss; it decides between pairs (a row for each prompt) and judged samples.
        mini_batch_size: rows per optimizer step, within which KTO's mismatched answers are drawn.
    """
    batch = informative_groups(batch, "score")
    # A row that the reward excluded has no tokens left: it ranks nowhere.
    batch = batch.select_idxs(batch.batch["response_mask"].bool().any(-1))
    if not len(batch):
        return batch
    columns = {key: batch.batch[key] for key in SEQUENCE}
    scores = batch.batch["token_level_scores"].sum(-1)
    groups = group_numbers(batch)
    if takes_samples(loss):
        numbers = torch.from_numpy(groups)
        mean = torch.zeros(int(numbers.max()) + 1).index_add(0, numbers, scores) / torch.bincount(numbers)
        rows = DataProto.from_dict({**columns, "labels": scores > mean[numbers]})
        return with_mismatched(rows, mini_batch_size)
    # Rows by (prompt, score): the first and the last of each prompt are its worst and its best sample.
    order = np.lexsort((scores.numpy(), groups))
    worst = np.flatnonzero(np.diff(groups[order], prepend=-1))
    best = np.append(worst[1:], len(order)) - 1
    pairs = torch.from_numpy(np.stack([order[best], order[worst]], axis=1))
    return DataProto.from_dict({key: column[pairs] for key, column in columns.items()})
