"""Defines the section `search_r1` of a recipe: where the policy searches, and its limits."""

from __future__ import annotations

from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from agentic.search_r1.prompts import Format, Prompt
from core.config import ConversationRecipe, Section

PRESETS = Path(__file__).parent / "presets"


class VisitSection(Section):
    """Lets the policy visit the page behind a passage (visit.py)."""

    role: str | None = None
    """Names who reads the page for the policy: one of the recipe's `roles`, or `policy`, whose summaries are trained as
    rows of the same rollout. None shows the policy the page's beginning."""
    page_tokens: PositiveInt = 4096
    """Limits what is read of a page: its beginning, and at most 16 characters a token."""
    max_tokens: PositiveInt = 512
    """Limits the tokens of a summary."""
    tokenizer: str | None = None
    """Names a folder or hub id, for a role whose vocabulary is not the policy's."""


class SearchR1Section(Section):
    url: str
    """Names the retrieval service, such as http://HOST:PORT/retrieve (`tokentrue serve retrieval`)."""
    addresses: str | None = None
    """Names a YAML file, name -> URL, as scripts/services.py writes it. `{name}` in `url` stands for that URL."""
    api_key_file: str | None = None
    """Names the file that holds the key of the service."""
    max_retries: NonNegativeInt = 12
    """Counts the retries of a search. The pauses between the twelve of the default add up to some 40 seconds."""
    topk: PositiveInt = 3
    """Counts the passages that a search shows."""
    max_turns: PositiveInt
    """Limits the turns of a rollout, the answer included."""
    max_tokens: PositiveInt = 512
    """Limits the tokens of a turn."""
    format: Format = "tags"
    """Chooses how the policy searches and answers (formats.py): in the released tags, or by calls of a tool, with the
    answer in a box. `tokentrue data check` shows which one a model knows."""
    prompt: Prompt = "released"
    """Chooses the first message (prompts.py)."""
    visit: VisitSection | None = None
    """Lets the policy visit pages, beside its searches. None does without."""


class SearchR1Recipe(ConversationRecipe):
    search_r1: SearchR1Section
