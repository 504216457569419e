"""From a prompt as files write it to token ids. Imports no torch: processes that measure prompts start sooner."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from verl.utils.chat import without_null_fields
from verl.utils.control_tokens import ControlTokens, check_characters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = str | Sequence[Mapping[str, Any]]
"""Text that goes to the model as it is, or a chat: messages with `role` and `content`."""


@dataclass(frozen=True)
class SettingNames:
    """What messages call the settings of prompts, so that they name what the reader can set."""

    chat_template: str
    system_prompt: str
    strings_as_chat: str
    max_prompt_length: str
    cutting: str
    """What else helps against a prompt that is too long."""


CONFIG_KEYS = SettingNames(
    chat_template="data.chat_template",
    system_prompt="data.system_prompt",
    strings_as_chat="data.strings_as_chat=true",
    max_prompt_length="data.max_prompt_length",
    cutting="data.filter_overlong_prompts=true or data.truncation to left, right or middle",
)


@dataclass(frozen=True)
class PromptEncoder:
    """Token ids of a prompt; the one way from prompt to ids, for training, validation and the overlong filter.

    A chat goes through the chat template with a generation prompt; the template alone decides on a BOS. A string gets
    what the tokenizer puts before a text (one BOS, if any) and never an EOS after it.

    Attributes:
        chat_template: replaces the tokenizer's own.
        template_kwargs: further arguments of the template, such as `tools` or `enable_thinking`.
        system_prompt: becomes the first message of a chat that has no system message.
        strings_as_chat: a string is a user's message.
        parse_special_tokens: control tokens in a string are control tokens, so that whoever writes one may write the
            template out; otherwise they are plain text, as they always are in the messages of a chat.
        names: of these settings, for error messages.
    """

    tokenizer: "PreTrainedTokenizerBase"
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    strings_as_chat: bool = False
    parse_special_tokens: bool = False
    names: SettingNames = CONFIG_KEYS

    def __call__(self, prompt: Prompt, tools: Any = None) -> list[int]:
        """Raises ValueError for a prompt that is neither text nor a chat, that the template refuses, or without tokens,
        and for a chat when there is no template."""
        rendered = self._rendered(prompt, tools)
        ids = self._encode_text(prompt) if rendered is None else self.tokenize_rendered(rendered)  # type: ignore[arg-type]
        if not ids:
            raise ValueError("the prompt is empty: it has no tokens")
        return ids

    def lengths(self, rows: Sequence[tuple[str, Prompt, Any]]) -> list[int]:
        """Tokens of each (place, prompt, tools), chats tokenized together, which is faster.

        Raises ValueError as for a single prompt, with its place."""
        found: list[int] = [0] * len(rows)
        chats: dict[int, str] = {}
        for number, (place, prompt, tools) in enumerate(rows):
            with located(place):
                rendered = self._rendered(prompt, tools)
                if rendered is None or self.control.marked(rendered):
                    found[number] = len(self(prompt, tools))
                else:
                    check_characters(rendered)
                    chats[number] = rendered
        if chats:
            encoded = self.tokenizer(list(chats.values()), add_special_tokens=False, verbose=False)["input_ids"]
            for number, ids in zip(chats, encoded, strict=True):
                if not ids:
                    raise ValueError(f"{rows[number][0]}: the prompt is empty: it has no tokens")
                found[number] = len(ids)
        return found

    def _rendered(self, prompt: Prompt, tools: Any) -> str | None:
        """A chat, or what is taken for one, in the template; None for text."""
        if isinstance(prompt, str):
            if not self.strings_as_chat:
                return None
            prompt = [{"role": "user", "content": prompt}]
        return self.render(self._with_system(prompt), tools=tools)

    def _with_system(self, messages: Any) -> Any:
        if self.system_prompt is None or not isinstance(messages, list | tuple) or not messages:
            return messages
        first = messages[0]
        has_one = isinstance(first, Mapping) and first.get("role") in ("system", "developer")
        return messages if has_one else [{"role": "system", "content": self.system_prompt}, *messages]

    def _encode_text(self, text: str) -> list[int]:
        tokenizer = self.tokenizer
        if self.system_prompt is not None:
            raise ValueError(
                f"the prompt is a string, which has no system message: set {self.names.strings_as_chat}, or leave out "
                f"{self.names.system_prompt}"
            )
        if not self.parse_special_tokens and self.control.found_in(text):
            bos = [token for token in self._tokenize("")[:1] if token == tokenizer.bos_token_id]
            return bos + self.continued(text)
        has_bos = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)
        ids = self._tokenize(text, add_special_tokens=not has_bos)
        if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id and not text.endswith(tokenizer.eos_token):
            ids.pop()  # a model that has seen the end token has nothing left to say
        return ids

    def continued(self, text: str) -> list[int]:
        """The ids of text that goes on after other text: nothing is put before or after it. Control tokens in it are
        what they are in a prompt that is a string."""
        if self.parse_special_tokens:
            return self._tokenize(text, add_special_tokens=False)
        return self.control.encode(self.control.mark(text))

    def render(self, messages: Sequence[Mapping[str, Any]], generation_prompt: bool = True, tools: Any = None) -> str:
        """A chat as the template writes it, for `tokenize_rendered`; `tools` take the place of `template_kwargs`'.

        Control tokens that stand in a message, which are plain text there, come as marks.
        """
        return self._apply_template(self.marked(messages), generation_prompt, self.control.mark(_tools(tools)))

    def marked(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages, checked, with marks for the control tokens that stand in them."""
        return [self.control.mark(message) for message in _checked_messages(messages)]

    def tokenize_rendered(self, text: str) -> list[int]:
        """The ids of a chat, or of a part of it, that `render` made."""
        return self.control.encode(text)

    def _apply_template(self, messages: list[dict[str, Any]], generation_prompt: bool, tools: Any = None) -> str:
        if self.chat_template is None and not self.tokenizer.chat_template:
            raise ValueError(
                f"the prompt is a chat, but the tokenizer {self.tokenizer.name_or_path!r} has no chat template: set "
                f"one with {self.names.chat_template}, or write prompts as strings, which need none"
            )
        arguments = {"add_generation_prompt": generation_prompt, **self.template_kwargs}
        if tools:
            arguments["tools"] = tools
        try:
            text = self.tokenizer.apply_chat_template(
                messages, chat_template=self.chat_template, tokenize=False, **arguments
            )
        except TemplateError as error:
            raise ValueError(f"the chat template fails on this prompt: {error}") from error
        assert isinstance(text, str)
        return text

    def _tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        check_characters(text)
        # verbose=False: a prompt longer than the model's limit is the filter's business, not a warning's.
        return list(self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])

    @cached_property
    def control(self) -> ControlTokens:
        return ControlTokens(self.tokenizer)


def pad_token_id(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id that fills the masked cells; the EOS when there is no pad token. ValueError when there is neither."""
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return int(token_id)
    raise ValueError(
        f"the tokenizer {tokenizer.name_or_path!r} has neither a pad nor an EOS token: set tokenizer.pad_token"
    )


def truncate(ids: Sequence[int], max_length: int, side: str, names: SettingNames = CONFIG_KEYS) -> list[int]:
    """At most `max_length` ids: `left` keeps the last ones, `right` the first, `middle` both ends (of an odd length
    the end gets one more). ValueError with both lengths when `side` is `error` and the prompt is longer."""
    if len(ids) <= max_length:
        return list(ids)
    if side == "error":
        raise ValueError(
            f"the prompt has {len(ids)} tokens, but {names.max_prompt_length} is {max_length}: raise it, or set "
            f"{names.cutting}"
        )
    head = {"left": 0, "right": max_length, "middle": max_length // 2}[side]
    return [*ids[:head], *ids[len(ids) - (max_length - head) :]]


@contextmanager
def located(place: str) -> Iterator[None]:
    """Begin the message of a ValueError in the block with where the row is."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _tools(tools: Any) -> list[Any] | None:
    """Tools as a list of objects: written so, or as JSON; without the nulls that a table puts where rows differ."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise ValueError(f"the tools are text that is not valid JSON: {error}") from error
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError(f"tools must be a list of objects, or JSON text of one, unlike {tools!r:.200}")
    return [_without_nulls(tool) for tool in tools]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages without their null fields. ValueError for what is no chat."""
    if not isinstance(messages, list | tuple):
        raise ValueError(f"a prompt must be a string or a list of messages, not a {type(messages).__name__}")
    if not messages:
        raise ValueError("the prompt is an empty list of messages")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f"a message must have a `role` and a `content`, unlike {message!r:.200}")
        if message["content"] is None and not message.get("tool_calls"):
            # Most templates would write the word "None".
            raise ValueError(f"the content of a message without tool calls is null: {message!r:.200}")
    return without_null_fields(messages)
