"""From chats and answers to token ids, with a mask of what the assistant says.

A conversation is tokenized piece by piece, cut where the assistant's words begin and end, because that is how the
model meets it when it generates: the prompt is tokenized without what follows.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from verl.config import OfflineDataConfig
from verl.data.prompts import Prompt, PromptEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]
Span = tuple[int, int]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Encoded:
    """Token ids, and for each of them whether it is trained on (1) or context (0). The last one is trained on."""

    ids: list[int]
    trained: list[int]

    @property
    def prompt_length(self) -> int:
        """Tokens before the first one that is trained on."""
        return self.trained.index(1)


@dataclass
class ConversationEncoder:
    """Encodes chats and answers. Trained on are the assistant's tokens, the one that ends a turn included.

    Where the assistant speaks is what the template says (`{% generation %}` blocks), or else found by rendering the
    chat up to each of its turns. Token ids after the last trained token are left out.
    """

    prompts: PromptEncoder
    _warned: bool = field(default=False, init=False)

    def chat(self, messages: Messages, context: int = 0) -> Encoded:
        """`context` counts leading messages that are not trained on, whoever speaks.

        ValueError when no assistant message is left, or when the template writes the beginning of a chat differently
        once more messages follow, so that no mask can be right.
        """
        turns = [i for i, message in enumerate(self.prompts.marked(messages)) if message["role"] == "assistant"]
        skipped = sum(turn < context for turn in turns)
        if len(turns) == skipped:
            raise ValueError("the chat has no assistant message to train on")
        text, spans = self._marked_spans(messages) if self._has_marks else self._prefix_spans(messages, turns)
        if len(spans) != len(turns):
            raise ValueError(
                f"the chat template has {len(spans)} generation blocks for {len(turns)} assistant messages: each "
                "message must have one"
            )
        ids: list[int] = []
        trained: list[int] = []
        position = 0
        for number, (start, end) in enumerate(spans):
            before, said = self._tokens(text[position:start]), self._tokens(text[start:end])
            count = 0 if number < skipped else self._end_of_turn(said)
            ids += before + said
            trained += [0] * len(before) + [1] * count + [0] * (len(said) - count)
            position = end
        if 1 not in trained:
            raise ValueError("the assistant says nothing that could be trained on")
        length = len(trained) - trained[::-1].index(1)
        return Encoded(ids[:length], trained[:length])

    def answer(self, prompt: Prompt, text: str) -> Encoded:
        """A prompt and one answer. After a prompt that is a string, the answer gets the EOS unless it ends in it.

        Control tokens that stand in the two are plain text, but with `parse_special_tokens` where both are strings.
        """
        if not isinstance(text, str):
            raise ValueError(f"an answer must be a string, not a {type(text).__name__}")
        if not isinstance(prompt, str):
            return self.chat([*prompt, {"role": "assistant", "content": text}], context=len(prompt))
        tokenizer = self.prompts.tokenizer
        context, ids = self.prompts(prompt), self.prompts.continued(text)
        if tokenizer.eos_token_id is None:
            raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no EOS token to end answers with")
        if ids[-1:] != [tokenizer.eos_token_id]:
            ids.append(tokenizer.eos_token_id)
        self._warn_of_plain_tokens(prompt, text)
        return Encoded(context + ids, [0] * len(context) + [1] * len(ids))

    def _warn_of_plain_tokens(self, *texts: str) -> None:
        """Once: who wrote a chat template out, or the EOS after the answers, may not have meant text."""
        found = any(map(self.prompts.control.found_in, texts))
        if found and not self.prompts.parse_special_tokens and not self._warned:
            self._warned = True
            logger.warning(
                "control tokens that stand in prompts and answers which are strings are plain text, as in %r: set "
                "data.parse_special_tokens=true to read them as such",
                "".join(texts)[-80:],
            )

    @cached_property
    def _has_marks(self) -> bool:
        return _GENERATION.search(self._template) is not None

    @property
    def _template(self) -> str:
        own = self.prompts.tokenizer.chat_template
        template = self.prompts.chat_template or (own.get("default", "") if isinstance(own, dict) else own)
        return template or ""

    def _prefix_spans(self, messages: Messages, turns: Sequence[int]) -> tuple[str, list[Span]]:
        """The chat's text and where each assistant turn stands in it, as the length of what comes before it."""
        if turns[0] == 0:
            raise ValueError("the chat begins with an assistant message: nothing comes before it that could prompt it")
        whole = self.prompts.render(messages, generation_prompt=False)
        spans = []
        for turn in turns:
            before = self.prompts.render(messages[:turn])
            after = self.prompts.render(messages[: turn + 1], generation_prompt=False)
            for part in (before, after):
                if not whole.startswith(part):
                    raise ValueError(
                        f"the chat template does not write the first {turn} messages the same once message {turn} "
                        f"follows: ...{part[-40:]!r} is not what the whole chat has there. Mark the assistant's words "
                        "with {% generation %} blocks in data.chat_template, or change the template's arguments "
                        "(data.apply_chat_template_kwargs)"
                    )
            spans.append((len(before), len(after)))
        return whole, spans

    def _marked_spans(self, messages: Messages) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        arguments = {**self.prompts.tokenizer.special_tokens_map, **self.prompts.template_kwargs}
        rendered: Any = render_jinja_template(
            [self.prompts.marked(messages)],
            chat_template=self._template,
            return_assistant_tokens_mask=True,
            **arguments,
        )
        (text,), (spans,) = rendered
        return text, [(int(start), int(end)) for start, end in spans]

    def _tokens(self, text: str) -> list[int]:
        return self.prompts.tokenize_rendered(text) if text else []

    def _end_of_turn(self, said: list[int]) -> int:
        """How many tokens of a turn count: those up to its end token, if it has one. Nobody samples what follows."""
        return max((i + 1 for i, token in enumerate(said) if token in self.prompts.control.ids), default=len(said))


def conversation_encoder(tokenizer: "PreTrainedTokenizerBase", config: OfflineDataConfig) -> ConversationEncoder:
    """How chats and answers become token ids by `config`."""
    template_kwargs = dict(config.apply_chat_template_kwargs)
    return ConversationEncoder(
        PromptEncoder(
            tokenizer, config.chat_template, template_kwargs, parse_special_tokens=config.parse_special_tokens
        )
    )
