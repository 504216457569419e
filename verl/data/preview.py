"""`python -m verl.data.preview FILE ... --tokenizer PATH [data.key=value ...]`: what a data file holds, and what of it
the model will see: counts, lengths, what is filtered and why, and a few rows token for token."""

import argparse
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from verl.config import DataConfig
from verl.config.loader import load_config
from verl.data.files import JoinedRows, open_rows
from verl.data.prompts import PromptEncoder, truncate
from verl.data.rl_dataset import prompt_encoder, rows_used
from verl.data.sources import local_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BINS = 12
_BAR = 40
_EXAMPLES = 3
_COLOURS = {"pad": "\033[2m", "control": "\033[1;36m", "cut": "\033[9;31m", "head": "\033[1m"}
_PLAIN = "\033[0m"


@dataclass
class Survey:
    """What was found in the rows: the tokens of those that can be encoded, and the places of those that cannot."""

    rows: int = 0
    lengths: list[int] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    overlong: list[str] = field(default_factory=list)
    repeated_prompts: int = 0
    repeated_indices: int = 0


def survey(rows: JoinedRows, count: int, encoder: PromptEncoder, config: DataConfig) -> Survey:
    """Measure the first `count` rows; a row that cannot be encoded is noted and passed over."""
    found = Survey(rows=count)
    prompts: set[int] = set()
    indices: set[str] = set()
    names = (config.prompt_key, config.tools_key, config.reward_fn_key, "extra_info")
    for number, (prompt, tools, source, extra) in zip(range(count), rows.columns(names), strict=False):
        found.sources[str(source) if source is not None else "(none)"] += 1
        key = hash(json.dumps(prompt, sort_keys=True, default=str))
        found.repeated_prompts += key in prompts
        prompts.add(key)
        index = extra.get("index") if isinstance(extra, dict) else None
        if index is not None:
            identity = f"{source}/{extra.get('split')}/{index}"
            found.repeated_indices += identity in indices
            indices.add(identity)
        try:
            if prompt is None:
                raise ValueError("the prompt is null")
            length = len(encoder(prompt, tools))
        except ValueError as error:
            found.broken.append(f"{rows.place(number)}: {error}")
            continue
        found.lengths.append(length)
        if length > config.max_prompt_length:
            found.overlong.append(f"{rows.place(number)}: {length} tokens")
    return found


def report(found: Survey, config: DataConfig) -> Iterator[str]:
    """The survey in lines of text."""
    yield f"rows: {found.rows}"
    for source, count in found.sources.most_common():
        yield f"  {config.reward_fn_key} {source}: {count}"
    for what, count in (("prompts", found.repeated_prompts), ("indices", found.repeated_indices)):
        if count:
            yield f"repeated {what}: {count} rows have one that an earlier row has"
    if found.lengths:
        lengths = np.array(found.lengths)
        low, middle, high = (int(np.percentile(lengths, share)) for share in (5, 50, 95))
        yield f"prompt tokens: {lengths.min()} to {lengths.max()}; 5% {low}, half {middle}, 95% {high}"
        yield from histogram(lengths)
    limit = f"data.max_prompt_length={config.max_prompt_length}"
    what = "dropped" if config.filter_overlong_prompts else f"longer (data.truncation={config.truncation})"
    yield f"{what}: {len(found.overlong)} rows have more than {limit} tokens"
    yield from (f"  {place}" for place in found.overlong[:_EXAMPLES])
    yield f"broken: {len(found.broken)} rows cannot be encoded"
    yield from (f"  {place}" for place in found.broken[:_EXAMPLES])
    refused = config.truncation == "error" and not config.filter_overlong_prompts
    lost = len(found.overlong) if refused or config.filter_overlong_prompts else 0
    yield f"kept: {len(found.lengths) - lost} rows"
    stopping = {
        "that cannot be encoded": len(found.broken),
        f"longer than {limit} (data.truncation=error)": len(found.overlong) if refused else 0,
    }
    reasons = [f"{count} {why}" for why, count in stopping.items() if count]
    if reasons:
        yield f"would stop the run: {sum(stopping.values())} rows, {' and '.join(reasons)}"


def histogram(lengths: np.ndarray) -> Iterator[str]:
    """Bars of how many lengths are in each of up to 12 equal ranges."""
    width = max(-(-(int(lengths.max()) + 1 - int(lengths.min())) // _BINS), 1)
    counts = np.bincount((lengths - lengths.min()) // width)
    for number, count in enumerate(counts.tolist()):
        start = int(lengths.min()) + number * width
        bar = "#" * round(_BAR * count / counts.max())
        yield f"  {start:>6}-{start + width - 1:<6} {count:>8} {bar}"


def show_row(
    rows: JoinedRows, number: int, tokenizer: "PreTrainedTokenizerBase", config: DataConfig, colour: bool
) -> Iterator[str]:
    """One row as the model will see it: padding, control tokens and what is cut are marked."""

    def paint(kind: str, text: str) -> str:
        return f"{_COLOURS[kind]}{text}{_PLAIN}" if colour else text

    row = rows[number]
    yield paint("head", f"--- {rows.place(number)}")
    encoder = prompt_encoder(tokenizer, config)
    try:
        ids = encoder(row[config.prompt_key], row.get(config.tools_key))
        kept = truncate(ids, config.max_prompt_length, config.truncation)
    except ValueError as error:
        yield paint("cut", str(error))
        return
    special = set(tokenizer.all_special_ids)
    padding = config.max_prompt_length - len(kept)
    yield paint("pad", f"[attention 0: {padding} padding tokens]") + f" [attention 1: {len(kept)} tokens]"
    if len(kept) < len(ids):
        yield paint("cut", f"[{len(ids) - len(kept)} of {len(ids)} tokens are cut on the {config.truncation}]")
    text = ""
    run: list[int] = []
    for token in [*kept, None]:
        if token is not None and token not in special:
            run.append(token)
            continue
        text += str(tokenizer.decode(run)) if run else ""
        run = []
        if token is not None:
            text += paint("control", f"{tokenizer.convert_ids_to_tokens(token)}")
    yield text
    others = {key: value for key, value in row.items() if key != config.prompt_key}
    yield paint("pad", json.dumps(others, ensure_ascii=False, default=str))


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and print the preview."""
    parser = argparse.ArgumentParser(prog="python -m verl.data.preview", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, globs or URLs, and settings as data.key=value")
    parser.add_argument("--tokenizer", required=True, help="the model's folder or Hugging Face id")
    parser.add_argument("--rows", type=int, default=3, help="rows that are shown")
    parser.add_argument("--limit", type=int, default=-1, help="rows that are measured; -1 is all")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that the tokenizer brings")
    args = parser.parse_intermixed_args(argv)
    settings = [name for name in args.files if name.startswith("data.") and "=" in name]
    config = load_config(settings).data
    files = [name for name in args.files if name not in settings]
    colour = args.color == "always" or (args.color == "auto" and sys.stdout.isatty() and "NO_COLOR" not in os.environ)

    from transformers import AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer, trust_remote_code=args.trust_remote_code)
    rows = JoinedRows([open_rows(path) for path in local_files(files)])
    if config.prompt_key not in rows[0]:
        known = ", ".join(rows[0])
        raise ValueError(
            f"{rows.place(0)}: there is no column {config.prompt_key!r}, only {known}: set data.prompt_key"
        )
    count = rows_used(len(rows), args.limit)
    for line in report(survey(rows, count, prompt_encoder(tokenizer, config), config), config):
        print(line)
    for number in range(min(args.rows, count)):
        for line in show_row(rows, number, tokenizer, config, colour):
            print(line)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
