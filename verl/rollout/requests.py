"""What every engine asks of a request before it computes anything."""

from collections.abc import Sequence

from verl.rollout.base import Sampling
from verl.utils.seeding import derive_seed


def check_request(
    what: str, prompt: Sequence[int], sampling: Sampling, *, vocab_size: int, limit: int | None, limit_name: str
) -> None:
    """ValueError, beginning with `what`, for a prompt that is empty or leaves no room for `max_tokens` within `limit`
    tokens (None: no limit; `limit_name` is whose it is), and for ids of prompt or stops outside the vocabulary."""
    if len(prompt) == 0:
        raise ValueError(f"{what} is empty: at least one token is needed")
    known = (
        f"the model's vocabulary has {vocab_size} ids (0 to {vocab_size - 1}): do tokenizer and model belong together?"
    )
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab_size:
            raise ValueError(f"{what} has token id {token}, but {known}")
    for token in sampling.stop_token_ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{what} is to end at token id {token} (stop_token_ids), but {known}")
    length = len(prompt) + sampling.max_tokens
    if limit is not None and length > limit:
        raise ValueError(
            f"{what} has {len(prompt)} tokens; with max_tokens={sampling.max_tokens} that makes {length}, "
            f"but {limit_name} is {limit}"
        )


def completion_seeds(
    given: Sequence[int] | None, prompts: int, n: int, engine_seed: int, unseeded_calls: int
) -> Sequence[int]:
    """One seed for each of `n` completions of each prompt: those `given`, or the engine's own for this call.

    ValueError for a wrong number of seeds.
    """
    if given is None:
        return [derive_seed(engine_seed, "call", unseeded_calls, i) for i in range(prompts * n)]
    if len(given) != prompts * n:
        raise ValueError(
            f"{len(given)} seeds for {prompts * n} completions ({prompts} prompts with n={n}): "
            "give one for each completion"
        )
    return given
