"""Holds MemAgent's prompts.

`official` keeps the words of the paper's released templates (BytedTsinghua-SIA/MemAgent, Apache-2.0): the released
checkpoints depend on them. `compact` has the same parts in a few tokens, for models with a small context.
`prefix_friendly` puts the section before the memory, so that the members of a group share the prefill of a chunk.

The final answer is `boxed`, as in training, or `the_answer_is`, as in the evaluation behind the published scores.
tests/golden/prompts compares the official ones with the released ones.
"""

from __future__ import annotations

from typing import Literal

Order = Literal["official", "prefix_friendly"]
Style = Literal["official", "compact"]
AnswerFormat = Literal["boxed", "the_answer_is"]

EMPTY_MEMORY = "No previous memory"
KEEP, RECALL, STOP = "KEEP", "RECALL", "STOP"
"""Are the words of the options; reading.py says what each does."""

_UPDATE = (
    "You are presented with a problem, a section of an article that may contain the answer to the problem, and a "
    "previous memory. Please read the provided section carefully and update the memory with the new information that "
    "helps to answer the problem. Be sure to retain all relevant details from the previous memory while adding any "
    "new, useful information.{options}\n\n{parts}\n\nUpdated memory:\n"
)
_GATE = f" If the section adds nothing, answer with the single word {KEEP} and the memory stays as it is."
_RECALL = (
    f" If something that an earlier memory held would help, add a line of the word {RECALL} and the words to look for, "
    "and you will see the earlier memory that fits them best."
)
_EXIT = f" Once the memory is enough to answer the problem, end with the single word {STOP} and nothing more is read."
_FINAL = (
    "You are presented with a problem and a previous memory. Please answer the problem based on the previous memory "
    "and {format}.\n\n{parts}\n\nYour answer:\n"
)
_FORMATS: dict[AnswerFormat, str] = {
    "boxed": "put the answer in \\boxed{}",
    "the_answer_is": 'format your response as follows "Therefore, the answer is (insert answer here)"',
}
_OFFICIAL_PARTS = {
    "problem": "<problem> \n{problem}\n</problem>",
    "memory": "<memory>\n{memory}\n</memory>",
    "section": "<section>\n{section}\n</section>",
    "recalled": "<recalled>\n{recalled}\n</recalled>",
}
_COMPACT_PARTS = {name: f"<{name}>{{{name}}}</{name}>" for name in _OFFICIAL_PARTS}
_ORDERS = {"official": ("problem", "memory", "section"), "prefix_friendly": ("problem", "section", "memory")}


def update_message(style: Style, order: Order, gate: bool, recall: bool = False, leave: bool = False) -> str:
    """Return the message that asks for a memory update, with the slots problem, section and memory.

    `gate`, `recall` and `leave` offer the words KEEP, RECALL and STOP, but in the compact style, which says nothing of
    them. What was recalled has a slot before the memory.
    """
    parts = _join_parts(style, _ORDERS[order], recall)
    options = _GATE * gate + _RECALL * recall + _EXIT * leave
    return parts if style == "compact" else _UPDATE.replace("{options}", options).replace("{parts}", parts)


def final_message(style: Style, answer_format: AnswerFormat, recall: bool = False) -> str:
    """Return the message that asks for the answer, with the slots problem and memory, and maybe `recalled`."""
    parts = _join_parts(style, ("problem", "memory"), recall)
    format = _FORMATS[answer_format]
    return parts if style == "compact" else _FINAL.replace("{format}", format).replace("{parts}", parts)


def _join_parts(style: Style, names: tuple[str, ...], recall: bool) -> str:
    parts, between = (_COMPACT_PARTS, "") if style == "compact" else (_OFFICIAL_PARTS, "\n\n")
    if recall:
        place = names.index("memory")
        names = (*names[:place], "recalled", *names[place:])
    return between.join(parts[name] for name in names)
