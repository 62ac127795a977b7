"""What a `qa` rollout has gathered: documents, programs with their output, and attempts at the answer.

As text for a prompt it keeps within budgets (facts of the released code): attempts first, then programs, then documents
take what the ones before them left, and of what is over the end is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from agentic.toolorchestra.config import BudgetSection
from core.text.tokenizer import encode_text


@dataclass
class Workspace:
    documents: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """All of it in the order in which it came, a line each: the compact form."""

    def add_documents(self, found: list[str]) -> None:
        """New documents alternate with the old ones, new ones first; equal ones are kept once."""
        pairs = chain.from_iterable(zip_longest(found, self.documents))
        self.documents = list(dict.fromkeys(document for document in pairs if document is not None))

    def text(self, tokenizer: Any, budget: BudgetSection, room: int) -> str:
        """Documents, programs and attempts under headings, empty ones left out; in all at most `room` tokens."""
        attempts, used = _tail(tokenizer, "\n\n".join(self.attempts), min(budget.attempts, room))
        programs, of_programs = _tail(tokenizer, "\n\n".join(self.programs), min(budget.code, room) - used)
        left = room - used - of_programs
        documents, _ = _tail(tokenizer, "\n\n".join(d[: budget.document_characters] for d in self.documents), left)
        parts = {"Documents": documents, "Python code and outputs": programs, "Attempts": attempts}
        return "\n\n".join(f"{title}:\n{text}" for title, text in parts.items() if text)


def _tail(tokenizer: Any, text: str, max_tokens: int) -> tuple[str, int]:
    """The end of `text`, at most `max_tokens` of it, and how many they are."""
    ids = encode_text(tokenizer, text)
    if len(ids) <= max_tokens:
        return text, len(ids)
    kept = ids[len(ids) - max(0, max_tokens) :]
    return str(tokenizer.decode(kept)), len(kept)
