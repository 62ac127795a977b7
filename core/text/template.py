"""This module tokenizes a chat template once and splices the changing parts in as ids.

So a model's text enters a later prompt as the ids that it sampled, without its special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.options import RecipeError
from core.text.tokenizer import Ids, Tokenizer


class TokenTemplate:
    """Holds a user message with `{slots}`, which the model's chat template renders and the tokenizer encodes once.

    >>> template = TokenTemplate(tokenizer, "<problem>{problem}</problem>")
    >>> template.render(problem=ids)
    """

    def __init__(self, tokenizer: Tokenizer, message: str, slots: Sequence[str], system: str = ""):
        """Encode the template. Without a `system` message the chat template may put one of its own."""
        marks = {slot: f"@@{slot}@@" for slot in slots}
        for slot, mark in marks.items():
            if f"{{{slot}}}" not in message:
                raise ValueError(f"the message has no slot {{{slot}}}")
            message = message.replace(f"{{{slot}}}", mark)
        messages = [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": message}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        lost = [mark for mark in marks.values() if rendered.count(mark) != message.count(mark)]
        if lost or system.strip() not in rendered:
            raise RecipeError(
                "model.path: the chat template does not show a message's text, as those do that take a list of parts; "
                "take a model whose template does"
            )
        # pieces[0::2] is fixed text, pieces[1::2] the name of the slot between two such texts
        pieces = re.split(f"@@({'|'.join(slots)})@@", rendered)
        self._parts: list[Ids | str] = [
            piece if i % 2 else tuple(tokenizer.encode(piece, add_special_tokens=False))
            for i, piece in enumerate(pieces)
        ]

    @property
    def length(self) -> int:
        """Count the tokens of the template itself, with empty slots."""
        return sum(len(part) for part in self._parts if isinstance(part, tuple))

    def render(self, **slots: Sequence[int]) -> Ids:
        """Return the prompt's ids with every slot filled."""
        ids: list[int] = []
        for part in self._parts:
            ids += slots[part] if isinstance(part, str) else part
        return tuple(ids)
