"""Control tokens that stand in what somebody wrote, where they are plain text."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

# Characters of the private use area.
_OPENING = "\ue000"
_MARK = _OPENING + "{}\ue001"
_MARKED = re.compile(_MARK.format("([0-9]+)"))


def check_characters(text: str) -> None:
    """ValueError for half a character, which JSON can write ("\\ud83d" alone) and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise ValueError(
            f"the text has half a character, {half!r}, after {text[max(error.start - 20, 0) : error.start]!r}: it was "
            "cut inside one; write it whole, or leave it out"
        ) from error


class ControlTokens:
    """A tokenizer's special tokens, and how texts that hold their names are tokenized.

    `mark` what was written, put it into a chat template, and `encode` the whole: what the template wrote becomes
    control tokens, what stood in the texts the pieces that the tokenizer makes of such characters.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def names(self) -> list[str]:
        """What `mark` looks for, the longest first, in case one begins another; also what begins a mark, so that no
        text can be taken for one."""
        added = self.tokenizer.added_tokens_decoder.values()
        names = {token.content for token in added if token.special} | set(self.tokenizer.all_special_tokens)
        return sorted(names | {_OPENING}, key=lambda name: (-len(name), name))

    @cached_property
    def ids(self) -> frozenset[int]:
        added = {number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return frozenset(added | set(self.tokenizer.all_special_ids))

    def found_in(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def up_to_last(self, text: str) -> str:
        """`text` up to the end of its last control token; all of it where there is none."""
        ends = [found.end() for found in self._pattern.finditer(text)]
        return text[: ends[-1]] if ends else text

    def mark(self, value: Any) -> Any:
        """`value` with every control token in its strings replaced by a mark that holds the token's number."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: _MARK.format((found.lastindex or 0) - 1), value)
        if isinstance(value, Mapping):
            return {key: self.mark(item) for key, item in value.items()}
        return [self.mark(item) for item in value] if isinstance(value, list) else value

    def marked(self, text: str) -> bool:
        """Whether `mark` found something."""
        return _MARKED.search(text) is not None

    def encode(self, text: str) -> list[int]:
        """The ids of a text with marks; nothing is put before or after it."""
        pieces = _MARKED.split(text)
        ids = self._tokenize(pieces[0])
        for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            ids += self._spelt(self.names[int(number)])
            ids += self._tokenize(piece)
        return ids

    def spaced(self, text: str) -> str:
        """`text` with a space after the first character of each control token, where no marks can be used."""
        return self._pattern.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def _spelt(self, name: str) -> list[int]:
        ids = self._tokenize(name, split_special_tokens=True)
        if self.ids.isdisjoint(ids):
            return ids
        # Unigram models have the names among their pieces.
        return [token for character in name for token in self._tokenize(character, split_special_tokens=True)]

    def _tokenize(self, text: str, split_special_tokens: bool = False) -> list[int]:
        check_characters(text)
        # verbose=False: that a text is longer than the model's limit is somebody else's business.
        encoded = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=split_special_tokens, verbose=False
        )
        return list(encoded["input_ids"])

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(f"({re.escape(name)})" for name in self.names) or "(?!)")
