"""From a batch of padded rows to lists of token ids and back.

B rows, P prompt columns (padded on the left), R response columns (padded on the right).
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from verl.rollout.base import Completion


def prompts_from(batch: TensorDict) -> list[list[int]]:
    """The token ids of each row of `input_ids` [B, P] where `attention_mask` [B, P] is 1, without padding."""
    masks = batch["attention_mask"].bool()
    return [ids[mask].tolist() for ids, mask in zip(batch["input_ids"], masks, strict=True)]


def position_ids_from(attention_mask: Tensor) -> Tensor:
    """Positions [B, T] of a mask [B, T]: 0, 1, 2, ... on its tokens.

    Padding on the left has position 0, padding after a token repeats that token's position, so that none reaches
    beyond the last token's and the model's limit.
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp_min(0)


def left_pad(rows: Sequence[Sequence[int]], width: int, pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both int64 [B, width], with each row at the right edge."""
    ids = torch.full((len(rows), width), pad_token_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row, dtype=torch.int64)
        mask[i, width - len(row) :] = 1
    return ids, mask


def responses_to_batch(
    prompt_batch: TensorDict, completions: Sequence[Completion], response_length: int, pad_token_id: int
) -> TensorDict:
    """The columns of a response, R = `response_length`; completion i belongs to row i of `prompt_batch`.

    Returns `prompts` [B, P], `responses` [B, R], `input_ids`, `attention_mask`, `position_ids` [B, P+R],
    `response_mask` [B, R] (1 on the completion's tokens, by their number: an end token counts even where its id is
    the pad id) and `rollout_log_probs` [B, R] (0 under a mask of 0), on the device of `prompt_batch`.

    ValueError when the numbers of rows differ, or a completion is empty, longer than R or without a log-prob a token.
    """
    width = prompt_batch["input_ids"].shape[1]
    device = prompt_batch["input_ids"].device
    _check(len(prompt_batch["input_ids"]), completions, response_length)
    # Placed anew, so that prompts padded elsewhere than on the left still end where their response begins.
    prompts, prompt_mask = left_pad(prompts_from(prompt_batch), width, pad_token_id)
    rows = len(completions)
    responses = torch.full((rows, response_length), pad_token_id, dtype=torch.int64)
    response_mask = torch.zeros((rows, response_length), dtype=torch.int64)
    log_probs = torch.zeros((rows, response_length), dtype=torch.float32)
    for i, completion in enumerate(completions):
        length = len(completion.token_ids)
        responses[i, :length] = torch.tensor(completion.token_ids, dtype=torch.int64)
        log_probs[i, :length] = torch.tensor(completion.log_probs, dtype=torch.float32)
        response_mask[i, :length] = 1
    attention_mask = torch.cat([prompt_mask, response_mask], dim=1)
    columns = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": position_ids_from(attention_mask),
        "response_mask": response_mask,
        "rollout_log_probs": log_probs,
    }
    return TensorDict(columns, batch_size=[rows]).to(device)


def _check(rows: int, completions: Sequence[Completion], response_length: int) -> None:
    if len(completions) != rows:
        raise ValueError(f"{len(completions)} completions for {rows} prompts: one for each row is expected")
    for i, completion in enumerate(completions):
        length = len(completion.token_ids)
        if not 1 <= length <= response_length:
            raise ValueError(f"row {i}: its completion has {length} tokens, expected 1 to {response_length}")
        if len(completion.log_probs) != length:
            raise ValueError(f"row {i}: its completion has {length} tokens but {len(completion.log_probs)} log-probs")
