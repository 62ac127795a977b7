"""This module renders a conversation as token ids with the model's own chat template.

Every message is spliced into the template as ids. Text from outside is encoded once, without special tokens. Ids that a
model sampled stay as they are. Only our own `Markup` may hold special tokens, so nobody in the conversation can forge
its structure. A rendered prompt extends the ids of the prompt before it wherever the template allows that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from core.text.tokenizer import Ids, encode_text

MAX_CACHED_CHARACTERS = 400
"""Limits the texts whose ids are cached."""

_MARK = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class Markup:
    """Marks our own text; special tokens in it are encoded as special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """Holds one encoded message; `Renderer.message` makes it."""

    role: str
    ids: Ids


class Renderer:
    """Renders messages into prompts for one tokenizer. Its chat template gets `options`, such as enable_thinking."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None):
        self.tokenizer = tokenizer
        self._options = dict(options or {})
        self._encode_markup_cached = lru_cache(maxsize=4096)(self._encode_markup)
        self._encode_text_cached = lru_cache(maxsize=4096)(self._encode_text)

    def message(self, role: str, *parts: str | Markup | Ids) -> Message:
        """Encode a message from its parts in order: text from outside, our own markup, or ids that a model sampled."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                # Short texts are cached: the turns and rollouts of a group repeat the same questions and lines.
                encode = self._encode_text_cached if len(part) <= MAX_CACHED_CHARACTERS else self._encode_text
                ids += encode(part)
            else:
                ids += self._encode_markup_cached(part.text) if isinstance(part, Markup) else part
        return Message(role, tuple(ids))

    def sampled_message(self, ids: Ids) -> Message:
        """Wrap sampled ids as an assistant's message, without the end token: the template adds that itself."""
        has_end = bool(ids) and ids[-1] == self.tokenizer.eos_token_id
        return Message("assistant", ids[:-1] if has_end else ids)

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Ids:
        """Return the prompt for the next assistant's message; `tools` have OpenAI's form.

        Raises:
            ValueError: the chat template drops a message or repeats one.
        """
        placeholders = [{"role": message.role, "content": f"\ue000{i}\ue001"} for i, message in enumerate(messages)]
        rendered = self.tokenizer.apply_chat_template(
            placeholders, tools=list(tools) or None, tokenize=False, add_generation_prompt=True, **self._options
        )
        # pieces[0::2] is text of the template, pieces[1::2] the index of the message between two such texts
        pieces = _MARK.split(rendered)
        if sorted(map(int, pieces[1::2])) != list(range(len(messages))):
            roles = ", ".join(message.role for message in messages)
            raise ValueError(f"the chat template does not show every message once; the roles are {roles}")
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            ids += messages[int(piece)].ids if i % 2 else self._encode_markup_cached(piece)
        return tuple(ids)

    def _encode_text(self, text: str) -> Ids:
        return encode_text(self.tokenizer, text)

    def _encode_markup(self, text: str) -> Ids:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False)) if text else ()
