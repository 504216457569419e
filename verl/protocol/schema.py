"""The one list of the columns that the parts of a run exchange, and a check of batches against it.

Sizes: B rows, P prompt width (prompts are padded on the left), R response width (padded on the right). A batch may hold
other columns too; these are the names that have a meaning everywhere.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl.protocol.data_proto import DataProto

_ROWS = ("B",)
_PROMPT = ("B", "P")
_RESPONSE = ("B", "R")
_SEQUENCE = ("B", "P+R")


@dataclass(frozen=True)
class Field:
    """One column.

    Attributes:
        name: the key.
        shape: a name for each dimension; the same name means the same size in every column of a batch.
        dtype: the torch dtype's name, or "object" for a non-tensor column (an array of strings is one too).
        written_by: who makes it.
        read_by: who uses it.
        doc: what it holds.
        loss_mask: whether it says what counts in losses and metrics, so that pad rows have zeros in it.
        tensor: whether it is in `batch` rather than `non_tensor_batch`.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    written_by: str
    read_by: str
    doc: str
    loss_mask: bool = False
    tensor: bool = True


_FIELDS = (
    Field("prompts", _PROMPT, "int64", "rollout", "trainer, rewards", "Prompt ids, padded on the left."),
    Field("responses", _RESPONSE, "int64", "rollout", "models, rewards", "Sampled ids, padded on the right."),
    Field(
        "input_ids",
        _SEQUENCE,
        "int64",
        "data (the prompt alone, R = 0), then rollout",
        "rollout, models",
        "Prompt and response ids.",
    ),
    Field("attention_mask", _SEQUENCE, "int64", "data, then rollout", "rollout, models", "1 on tokens, 0 on padding."),
    Field(
        "position_ids",
        _SEQUENCE,
        "int64",
        "data, then rollout",
        "models",
        "0, 1, 2, ... on the tokens of a row, going on from the prompt through the response; 0 on left padding.",
    ),
    Field(
        "response_mask",
        _RESPONSE,
        "int64",
        "rollout",
        "losses, advantages, metrics",
        "1 on tokens that the policy sampled (from their number, not from ids), 0 on padding and inserted tokens.",
        loss_mask=True,
    ),
    Field("seed", _ROWS, "int64", "trainer", "rollout", "Seed of the row's sample, whichever replica makes it."),
    Field(
        "rollout_log_probs",
        _RESPONSE,
        "float32",
        "rollout",
        "trainer (comparison), losses (rollout correction)",
        "log p of each response token under the generation engine, at the sampling temperature.",
    ),
    Field(
        "old_log_probs",
        _RESPONSE,
        "float32",
        "actor (compute_log_prob)",
        "policy loss, KL in the reward",
        "log p of each response token under the policy before this step's updates.",
    ),
    Field(
        "ref_log_probs",
        _RESPONSE,
        "float32",
        "reference (compute_ref_log_prob)",
        "KL in the reward, KL loss",
        "log p of each response token under the reference policy.",
    ),
    Field(
        "values",
        _RESPONSE,
        "float32",
        "critic (compute_values)",
        "advantages, value loss",
        "Expected return before each response token is produced.",
    ),
    Field(
        "rm_scores",
        _RESPONSE,
        "float32",
        "reward model (compute_rm_score)",
        "rewards",
        "The reward model's score, at the last response token; 0 elsewhere.",
    ),
    Field(
        "token_level_scores",
        _RESPONSE,
        "float32",
        "rewards",
        "trainer (KL in the reward), metrics",
        "Reward by token before any KL penalty; a score for the whole response is at its last token.",
    ),
    Field(
        "token_level_rewards",
        _RESPONSE,
        "float32",
        "trainer",
        "advantages",
        "token_level_scores with the KL penalty taken off.",
    ),
    Field("advantages", _RESPONSE, "float32", "advantages", "policy loss", "Advantage of each response token."),
    Field("returns", _RESPONSE, "float32", "advantages", "value loss", "Target of the value of each response token."),
    Field(
        "entropy",
        _RESPONSE,
        "float32",
        "actor (compute_log_prob)",
        "metrics",
        "Entropy of the policy at each response token before this step's updates.",
    ),
    Field(
        "baseline_scores",
        _ROWS,
        "float32",
        "trainer",
        "advantages (greedy baseline)",
        "Score of the most likely response to the row's prompt.",
    ),
    Field(
        "rollout_weights",
        _RESPONSE,
        "float32",
        "trainer (rollout correction)",
        "policy loss",
        "Weight of each response token for the difference between rollout and trainer.",
    ),
    Field(
        "selected",
        _RESPONSE,
        "bool",
        "trainer",
        "policy loss (clip_cov, kl_cov)",
        "Tokens that the policy loss treats in its own way.",
    ),
    Field(
        "uid",
        _ROWS,
        "object",
        "trainer",
        "advantages (groups), metrics",
        "Identifies the prompt: all samples of one prompt share it, and no others.",
        tensor=False,
    ),
    Field("data_source", _ROWS, "object", "data", "rewards, metrics", "Name of the row's data set.", tensor=False),
    Field(
        "reward_model",
        _ROWS,
        "object",
        "data",
        "rewards",
        "How to score the row: a dict with `ground_truth` and `style`.",
        tensor=False,
    ),
    Field("extra_info", _ROWS, "object", "data", "rewards", "A dict with whatever else a scorer needs.", tensor=False),
    Field("raw_prompt", _ROWS, "object", "data", "rollout, rewards", "The prompt as chat messages.", tensor=False),
)

SCHEMA: dict[str, Field] = {field.name: field for field in _FIELDS}

LOSS_MASK_KEYS = frozenset(field.name for field in _FIELDS if field.loss_mask)
"""Columns that are zero in pad rows."""


def validate(data: "DataProto", required: Iterable[str]) -> None:
    """Check that `data` has the `required` columns and that every column of the schema in it is as listed.

    Raises one ValueError that lists all faults: missing columns and who writes them, wrong kinds, dtypes and ranks,
    and sizes of B, P and R that differ between columns.
    """
    present = [field for name, field in SCHEMA.items() if _find(data, name) is not None]
    faults = [*_missing(data, required), *(fault for field in present for fault in _wrong(data, field))]
    if not faults:  # sizes mean something only where the ranks are right
        faults = list(_size_conflicts(data, present))
    if faults:
        raise ValueError("this batch does not fit the schema:\n" + "\n".join(f"  - {fault}" for fault in faults))


def _find(data: "DataProto", name: str) -> str | None:
    if data.batch is not None and name in data.batch.keys():  # noqa: SIM118  (a TensorDict is not its keys)
        return "batch"
    return "non_tensor_batch" if name in data.non_tensor_batch else None


def _missing(data: "DataProto", required: Iterable[str]) -> Iterator[str]:
    for name in required:
        if _find(data, name) is None:
            writer = f"written by {SCHEMA[name].written_by}" if name in SCHEMA else "not a name of the schema"
            yield f"{name!r} is missing ({writer})"


def _wrong(data: "DataProto", field: Field) -> Iterator[str]:
    where = "batch" if field.tensor else "non_tensor_batch"
    found = _find(data, field.name)
    if found != where:
        yield f"{field.name!r} is in {found} but belongs in {where} (written by {field.written_by})"
        return
    column = getattr(data, where)[field.name]
    dtype = str(column.dtype).removeprefix("torch.")
    fits = dtype == field.dtype if field.tensor else column.dtype.kind in "OU"
    if not fits or column.ndim != len(field.shape):
        yield (
            f"{field.name!r} is {dtype} {list(column.shape)} but should be {field.dtype} [{', '.join(field.shape)}] "
            f"(written by {field.written_by})"
        )


def _size_conflicts(data: "DataProto", present: Iterable[Field]) -> Iterator[str]:
    known: dict[str, tuple[int, str]] = {}
    for field in present:
        shape = getattr(data, "batch" if field.tensor else "non_tensor_batch")[field.name].shape
        for dim, size in zip(field.shape, shape, strict=True):
            expected, source = known.setdefault(dim, (int(size), field.name))
            if size != expected:
                yield f"{field.name!r} has {dim} = {size} but {source!r} has {dim} = {expected}"
    if {"P", "R", "P+R"} <= known.keys() and known["P"][0] + known["R"][0] != known["P+R"][0]:
        (prompt, p_key), (response, r_key), (total, key) = known["P"], known["R"], known["P+R"]
        yield f"{key!r} has P+R = {total} but {p_key!r} has P = {prompt} and {r_key!r} has R = {response}"
