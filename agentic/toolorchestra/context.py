"""Keeps what the orchestrator has gathered, and fits it into the token budget of a prompt.

Facts of the released code: attempts come first, then programs; documents take what these leave; too much text keeps its
end. A dialogue that is too long loses its oldest messages; there it loses its middle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from agentic.toolorchestra.config import BudgetSection, ToolOrchestraSection
from core.text.conversation import Message, Renderer
from core.text.tokenizer import Tokenizer, encode_text


@dataclass
class Workspace:
    """Holds what a `qa` rollout has gathered: documents, programs with their output, and attempts at the answer."""

    documents: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """Holds everything in the order in which it came, one line each: the compact form."""

    def add_documents(self, documents: list[str]) -> None:
        """Spread new documents, the best one last, among the old ones as released; keep equal ones once."""
        each, old = len(self.documents) // max(1, len(documents)), iter(self.documents)  # 0: all old ones stand first
        merged = [document for new in documents for document in (new, *islice(old, each))]
        self.documents = list(dict.fromkeys([*merged, *old] if each else [*old, *merged]))

    def render(self, tokenizer: Tokenizer, budget: BudgetSection, max_tokens: int) -> str:
        """Return documents, programs and attempts under headings, at most `max_tokens`, without empty parts."""
        attempts, attempt_tokens = _tail(tokenizer, "\n\n".join(self.attempts), min(budget.attempts, max_tokens))
        left = min(budget.code, max_tokens) - attempt_tokens
        programs, program_tokens = _tail(tokenizer, "\n\n".join(self.programs), left)
        left = max_tokens - attempt_tokens - program_tokens
        documents, _ = _tail(tokenizer, "\n\n".join(d[: budget.document_characters] for d in self.documents), left)
        parts = {"Documents": documents, "Python code and outputs": programs, "Attempts": attempts}
        return "\n\n".join(f"{title}:\n{text}" for title, text in parts.items() if text)


def message_budget(config: ToolOrchestraSection, renderer: Renderer, tools: Sequence[Mapping[str, Any]]) -> int:
    """Return how many tokens of the whole budget `tools` leave to messages."""
    shown = "".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return config.budget.total - len(renderer.message("system", shown).ids)


def drop_oldest(messages: Sequence[Message], budget: int, keep: int) -> list[Message]:
    """Return `messages` within `budget` tokens; three bytes of a call count as one. After the first `keep`, the oldest
    go: an assistant's message together with everything that answers it."""
    sizes = {id(m): len(m.ids) + sum(len(call.render().encode()) // 3 for call in m.calls) for m in messages}
    first, rest = list(messages[:keep]), list(messages[keep:])
    while rest and sum(sizes[id(message)] for message in (*first, *rest)) > budget:
        following = [i for i, message in enumerate(rest) if i and message.role == "assistant"]
        if not following:
            break
        rest = rest[following[0] :]
    return first + rest


def truncate(config: ToolOrchestraSection, renderer: Renderer, text: str) -> str:
    """Return the first `budget.result_tokens` tokens of a result."""
    limit = config.budget.result_tokens
    ids = renderer.message("tool", text).ids
    return text if len(ids) <= limit else str(renderer.tokenizer.decode(ids[:limit])).rstrip("\ufffd")


def _tail(tokenizer: Tokenizer, text: str, max_tokens: int) -> tuple[str, int]:
    """Return the end of `text`, at most `max_tokens` tokens of it, and their number."""
    ids = encode_text(tokenizer, text)
    if len(ids) <= max_tokens:
        return text, len(ids)
    end = ids[len(ids) - max(0, max_tokens) :]
    return str(tokenizer.decode(end)).lstrip("\ufffd"), len(end)  # of a character that is cut, nothing is shown
