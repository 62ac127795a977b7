"""Holds what the policy is told and shown: the texts of the released code, so that its data sets and models fit.

In PeterGriffinJin/Search-R1 the instructions are in scripts/data_process/qa_search_train_merge.py, and the rest is in
search_r1/llm_agent/generation.py. tests/golden/prompts compares them.
"""

from __future__ import annotations

from typing import Literal

from core.text.conversation import Markup
from core.text.tool_calls import make_schema

Format = Literal["tags", "calls"]
"""Names the form of searches and answers (formats.py)."""

Prompt = Literal["released", "question"]
"""Names the first message: the released instructions with the question, or the question alone, for small models."""

INSTRUCTIONS = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. You can search as "
    "many times as your want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question:"
)

INFORMATION = "\n\n<information>{}</information>\n\n"
"""Follows a turn that searches; the passages are filled in."""

PASSAGE = "Doc {}(Title: {}) {}\n"
"""Shows a passage: its number, title and text."""

INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I "
    "want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
"""Follows a turn without an action."""


CALL_INSTRUCTIONS = (
    "Answer the given question. Reason first. If you lack some knowledge, call the tool search, as often as you need. "
    "When you know the answer, write it, as short as possible, as \\boxed{answer}. Question:"
)
"""Takes the place of the released instructions where a search is a call of a tool; the text is ours, as the next."""
CALL_INVALID = "You neither searched nor answered. Call the tool search, or write the answer as \\boxed{answer}."
TOOL = make_schema("search", "Searches for passages about a query, and shows the best.", {"query": "string"})


LONG_QUERY = "error: the query has {} characters, and a search takes {}. Search with a shorter one."
"""Stands in the place of what a search found."""


VISIT = " To read the page of a passage, write <visit> its title </visit>, with your goal on a second line. For"
"""Goes into the instructions where pages can be visited. The texts of visits are ours."""
VISIT_TOOL = make_schema(
    "visit",
    "Reads the page of a passage, by its title, and shows what helps towards a goal.",
    {"page": "string"},
    goal="string",
)
NO_PAGE = "error: there is no page {!r}. Visit a page by its title, as a search shows it."
NOTHING = "error: nothing can be read on the page {!r}."
GOES_ON = "\n(The page goes on.)"
SUMMARIZE = "Read a page for somebody. Copy the sentences that help, and sum up what they say. The page:\n\n"
LOOKED_FOR = "\n\nThe page ends. Add nothing of your own; if nothing on the page helps, say so. Looked for: "
"""Asks for a summary of the page that stands before it. What is looked for follows."""


def write_prompt(prompt: Prompt, question: str, form: Format = "tags", visit: bool = False) -> tuple[str | Markup, ...]:
    """Return the parts of the first message. As in the released data, a question ends with a question mark."""
    if prompt == "question":
        return (question,)
    question = question.strip()
    instructions = INSTRUCTIONS.replace(" For", VISIT) if visit else INSTRUCTIONS
    return Markup(
        instructions if form == "tags" else CALL_INSTRUCTIONS
    ), f" {question}{'' if question.endswith(('?', '？')) else '?'}\n"
