"""Generation with a transformers model in the caller's own process: the reference engine, on any device.

B is the number of rows decoded together, U that of their distinct prompts, P the width of the longest prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from verl.rollout.base import Completion, Sampling
from verl.rollout.batching import left_pad, position_ids_from
from verl.rollout.kv_cache import RowCache, rows_that_fit
from verl.rollout.module_weights import ModuleWeights
from verl.rollout.requests import check_request, completion_seeds
from verl.rollout.sampling import RowNoise, choose


class HFRolloutEngine:
    """A `RolloutEngine` over a causal language model of transformers.

    It decodes with a key-value cache; a prompt that stands several times in a micro-batch is prefilled once, and a
    row that ends leaves the batch. In fp32 a completion follows from prompt, seed and weights alone (up to the
    rounding of matrix products, which may differ with the number of rows).

    Args:
        model: the engine's own model, on its device and in the dtype to generate with. It is put into eval mode.
        device: where the model is; None looks at its weights.
        seed: what completions without seeds of their own follow from; give each replica another one.
        eos_token_ids: the ids that end a response; None takes those of the model's generation config.
        micro_batch_size: rows decoded together; None goes by the free memory.
        free_on_sleep: whether `sleep` gives the weights' memory back; None does on CUDA.
    """

    def __init__(
        self,
        model: nn.Module,
        device: str | torch.device | None = None,
        seed: int = 0,
        eos_token_ids: Sequence[int] | None = None,
        micro_batch_size: int | None = None,
        free_on_sleep: bool | None = None,
    ) -> None:
        if micro_batch_size is not None and micro_batch_size < 1:
            raise ValueError(f"micro_batch_size must be at least 1 or None (by memory), not {micro_batch_size}")
        self.model = cast(Any, model.eval())  # a PreTrainedModel, which only models/ and data/ may import
        self.device = next(model.parameters()).device if device is None else torch.device(device)
        self.seed = seed
        self.micro_batch_size = micro_batch_size
        self.eos_token_ids = _eos_of(self.model) if eos_token_ids is None else tuple(eos_token_ids)
        self.version = 0
        self._config = self.model.config.get_text_config()
        self._vocab_size = len(self.model.get_input_embeddings().weight)
        self._weights = ModuleWeights(model)
        self._free_on_sleep = self.device.type == "cuda" if free_on_sleep is None else free_on_sleep
        self._awake = True
        self._unseeded_calls = 0

    # ---- weights and memory ----

    @property
    def has_weights(self) -> bool:
        """Whether all weights hold values, so that `generate` can work."""
        return self._weights.complete

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy weights into the model, under their Hugging Face names and with any dtype; sets `version`.

        ValueError naming the weight when one is unknown, left out or of another shape. A list is checked before
        anything changes; after a stream that failed midway the engine refuses to generate until a whole update.
        """
        self._weights.load(weights)
        self.version = version

    def sleep(self) -> None:
        """Stop generating until `wake_up`. Where it frees them, `update_weights` must bring them again."""
        self._awake = False
        if self._free_on_sleep:
            self._weights.free()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """See `RolloutEngine.wake_up`. The KV cache lives only as long as `generate` runs."""
        if tags is None or "weights" in tags:
            self._weights.allocate()
        if tags is None or "kv_cache" in tags:
            self._awake = True

    def close(self) -> None:
        """Nothing to end."""

    def weight_errors(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """See `RolloutEngine.weight_errors`."""
        return self._weights.errors(weights)

    # ---- generation ----

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """See `RolloutEngine.generate`.

        ValueError for a prompt that is empty or leaves no room for `max_tokens` within the model's positions, for ids
        outside the vocabulary (also in `stop_token_ids`), and for a wrong number of seeds. RuntimeError when the engine
        sleeps or has no weights, and when the model's logits are not finite.
        """
        self._refuse_unready()
        for row, prompt in enumerate(prompts):
            check_request(
                f"prompt {row}",
                prompt,
                sampling,
                vocab_size=self._vocab_size,
                limit=getattr(self._config, "max_position_embeddings", None),  # not every model bounds its positions
                limit_name="the model's max_position_embeddings",
            )
        rows = [prompt for prompt in prompts for _ in range(sampling.n)]
        self._unseeded_calls += seeds is None
        seeds = completion_seeds(seeds, len(prompts), sampling.n, self.seed, self._unseeded_calls)
        completions: dict[int, Completion] = {}
        for chunk in self._micro_batches(rows, sampling.max_tokens):
            made = self._decode([rows[i] for i in chunk], [seeds[i] for i in chunk], sampling, chunk)
            completions.update(zip(chunk, made, strict=True))
        return [completions[i] for i in range(len(rows))]

    def _refuse_unready(self) -> None:
        if not self._awake:
            raise RuntimeError("the rollout engine sleeps: call wake_up() before generate()")
        if not self._weights.complete:
            raise RuntimeError(
                "the rollout engine has no complete weights (sleep() freed them, or an update failed midway): "
                "call update_weights() before generate()"
            )

    def _micro_batches(self, rows: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """Row indices cut into micro-batches of even size: long prompts first, copies of a prompt side by side."""
        if not rows:
            return []
        first_seen: dict[tuple[int, ...], int] = {}
        seen = [first_seen.setdefault(tuple(row), i) for i, row in enumerate(rows)]
        order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), seen[i]))
        size = self.micro_batch_size
        if size is None:
            size = rows_that_fit(self._config, self.model.dtype, self.device, len(rows[order[0]]), max_tokens)
        count = -(-len(rows) // size)
        size = -(-len(rows) // count)
        return [order[start : start + size] for start in range(0, len(rows), size)]

    @torch.inference_mode()
    def _decode(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling, names: Sequence[int]
    ) -> list[Completion]:
        """Completions of one micro-batch; `names` are the rows' numbers in the caller's batch, for messages."""
        stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.eos_token_ids)}
        stop_ids = torch.tensor(sorted(stops), dtype=torch.int64, device=self.device)
        noise = None if sampling.temperature == 0 else RowNoise(seeds)
        tokens = torch.zeros((len(prompts), sampling.max_tokens), dtype=torch.int64, device=self.device)
        log_probs = torch.zeros((len(prompts), sampling.max_tokens), dtype=torch.float32, device=self.device)
        lengths = [sampling.max_tokens] * len(prompts)
        live = list(range(len(prompts)))
        rows, logits = self._prefill(prompts, sampling.max_tokens)
        for step in range(sampling.max_tokens):
            drawn = None if noise is None else noise.draw(live, logits.shape[-1]).to(self.device)
            chosen, chosen_log_probs = choose(logits, drawn, sampling)
            tokens[live, step], log_probs[live, step] = chosen, chosen_log_probs
            ended = torch.isin(chosen, stop_ids).tolist()
            if any(ended):
                for row, end in zip(live, ended, strict=True):
                    if end:
                        lengths[row] = step + 1
                kept = survivors(ended)
                live = [live[i] for i in kept]
                order = torch.tensor(kept, dtype=torch.int64, device=self.device)
                rows.keep(order)
                chosen = chosen[order]
            if not live or step + 1 == sampling.max_tokens:
                break
            logits = self._forward(chosen.unsqueeze(-1), rows)
        _refuse_not_finite(log_probs, names)
        return _completions(tokens.tolist(), log_probs.tolist(), lengths, stops)

    def _prefill(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> tuple["_Rows", Tensor]:
        """The state of all B rows after their prompts, and the logits [B, V] of their first token."""
        distinct = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        place = {prompt: i for i, prompt in enumerate(distinct)}
        owner = torch.tensor([place[tuple(prompt)] for prompt in prompts], device=self.device)
        width = max(map(len, distinct))
        ids, mask = (tensor.to(self.device) for tensor in left_pad(distinct, width, pad_token_id=0))
        # Without padding there is no mask either: attention then takes its fast path.
        padded = bool((mask == 0).any())
        rows = _Rows(
            positions=position_ids_from(mask),
            mask=mask if padded else None,
            cache=RowCache(owner, width + max_tokens - 1),
        )
        logits = self._forward(ids, rows)[owner]
        rows.positions = rows.positions[owner]
        if padded:
            rows.mask = nn.functional.pad(mask, (0, max_tokens), value=1)[owner]
        return rows, logits

    def _forward(self, ids: Tensor, rows: "_Rows") -> Tensor:
        """Run `ids` [rows, tokens] on top of the cache; returns the last token's logits [rows, V]."""
        length = rows.cache.get_seq_length() + ids.shape[1]
        output = self.model(
            input_ids=ids,
            attention_mask=None if rows.mask is None else rows.mask[:, :length],
            position_ids=rows.positions,
            past_key_values=rows.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        rows.positions = rows.positions[:, -1:] + 1
        return output.logits[:, -1]


@dataclass
class _Rows:
    """The rows of a micro-batch that still generate."""

    positions: Tensor  # [rows, tokens]: position ids of the next forward pass
    mask: Tensor | None  # [rows, P + max_tokens]: 0 on left padding; None without any
    cache: RowCache

    def keep(self, order: Tensor) -> None:
        self.positions = self.positions[order]
        self.mask = None if self.mask is None else self.mask[order]
        self.cache.keep(order)


def survivors(ended: Sequence[bool]) -> list[int]:
    """The rows that go on, closing the gaps of those that ended with the last ones: others keep their place."""
    left = len(ended) - sum(ended)
    last = (row for row in range(left, len(ended)) if not ended[row])
    return [next(last) if ended[row] else row for row in range(left)]


def _completions(
    tokens: list[list[int]], log_probs: list[list[float]], lengths: list[int], stops: set[int]
) -> list[Completion]:
    return [
        Completion(ids[:length], row_log_probs[:length], "stop" if ids[length - 1] in stops else "length")
        for ids, row_log_probs, length in zip(tokens, log_probs, lengths, strict=True)
    ]


def _refuse_not_finite(log_probs: Tensor, names: Sequence[int]) -> None:
    broken = (~log_probs.isfinite()).nonzero()
    if len(broken):
        row, step = broken[0].tolist()
        raise RuntimeError(
            f"completion {names[row]}: the model's logits at new token {step} are not finite; "
            "its weights hold NaN or overflow in this dtype"
        )


def _eos_of(model: Any) -> tuple[int, ...]:
    """The end ids of a model's generation config, which may name none, one or several."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
