"""A conversation as token ids: the model's own chat template, with everything that was said spliced in as ids.

Text from outside is encoded once, with special tokens switched off; what a model sampled stays as it was sampled; only
`Markup`, which is ours, may hold special tokens. So nobody in the conversation can forge its structure, and a rendered
prompt goes on from the ids of the one before it wherever the template itself allows that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from core.text.tokenizer import Ids, encode_text

SHORT = 400
"""Characters of a text whose ids are kept for the next time."""
_MARK = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class Markup:
    """Text of ours, in which special tokens are read as such."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message, encoded already. Made by `Renderer.message`."""

    role: str
    ids: Ids


class Renderer:
    """Messages into prompts for one tokenizer. `options` go to its chat template, such as enable_thinking."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None):
        self.tokenizer, self._options = tokenizer, dict(options or {})
        self._markup = lru_cache(maxsize=4096)(self._encode_markup)
        self._short = lru_cache(maxsize=4096)(self._encode_text)

    def message(self, role: str, *parts: str | Markup | Ids) -> Message:
        """Parts in their order: text from outside, markup of ours, or ids that a model sampled."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                # The turns and the rollouts of a group say the same questions and lines again and again.
                ids += self._short(part) if len(part) <= SHORT else self._encode_text(part)
            else:
                ids += self._markup(part.text) if isinstance(part, Markup) else part
        return Message(role, tuple(ids))

    def sampled(self, ids: Ids) -> Message:
        """An assistant's message as it was sampled, less the end token that the template puts there itself."""
        ended = bool(ids) and ids[-1] == self.tokenizer.eos_token_id
        return Message("assistant", ids[:-1] if ended else ids)

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Ids:
        """The prompt that asks for the next assistant's message; `tools` in OpenAI's form.

        Raises:
            ValueError: the chat template drops a message or repeats one.
        """
        marked = [{"role": message.role, "content": f"\ue000{i}\ue001"} for i, message in enumerate(messages)]
        rendered = self.tokenizer.apply_chat_template(
            marked, tools=list(tools) or None, tokenize=False, add_generation_prompt=True, **self._options
        )
        pieces = _MARK.split(rendered)
        if sorted(map(int, pieces[1::2])) != list(range(len(messages))):
            roles = ", ".join(message.role for message in messages)
            raise ValueError(f"the chat template does not show every message once; the roles are {roles}")
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            ids += messages[int(piece)].ids if place % 2 else self._markup(piece)
        return tuple(ids)

    def _encode_text(self, text: str) -> Ids:
        return encode_text(self.tokenizer, text)

    def _encode_markup(self, text: str) -> Ids:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False)) if text else ()
