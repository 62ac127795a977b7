"""Holds MemAgent's prompts as token templates.

`official` keeps the words of the paper's released templates (BytedTsinghua-SIA/MemAgent, Apache-2.0): the released
checkpoints depend on them. `compact` has the same parts in a few tokens, for models with a small context.
`prefix_friendly` puts the section before the memory, so that the members of a group share the prefill of a chunk.
"""

from __future__ import annotations

from typing import Any, Literal

from core.text.template import TokenTemplate

Order = Literal["official", "prefix_friendly"]
Style = Literal["official", "compact"]

EMPTY_MEMORY = "No previous memory"
KEEP = "KEEP"

_UPDATE = (
    "You are presented with a problem, a section of an article that may contain the answer to the problem, and a "
    "previous memory. Please read the provided section carefully and update the memory with the new information that "
    "helps to answer the problem. Be sure to retain all relevant details from the previous memory while adding any "
    "new, useful information.{gate}\n\n{parts}\n\nUpdated memory:\n"
)
_GATE = f" If the section adds nothing, answer with the single word {KEEP} and the memory stays as it is."
_FINAL = (
    "You are presented with a problem and a previous memory. Please answer the problem based on the previous memory "
    "and put the answer in \\boxed{}.\n\n{parts}\n\nYour answer:\n"
)
_OFFICIAL_PARTS = {
    "problem": "<problem> \n{problem}\n</problem>",
    "memory": "<memory>\n{memory}\n</memory>",
    "section": "<section>\n{section}\n</section>",
}
_COMPACT_PARTS = {name: f"<{name}>{{{name}}}</{name}>" for name in _OFFICIAL_PARTS}
_ORDERS = {"official": ("problem", "memory", "section"), "prefix_friendly": ("problem", "section", "memory")}


def make_update_template(tokenizer: Any, style: Style, order: Order, gate: bool) -> TokenTemplate:
    """Make the prompt of a memory update, with the slots problem, section and memory."""
    names = _ORDERS[order]
    if style == "compact":
        message = "".join(_COMPACT_PARTS[name] for name in names)
    else:
        parts = "\n\n".join(_OFFICIAL_PARTS[name] for name in names)
        message = _UPDATE.replace("{gate}", _GATE if gate else "").replace("{parts}", parts)
    return TokenTemplate(tokenizer, message, slots=names)


def make_final_template(tokenizer: Any, style: Style) -> TokenTemplate:
    """Make the prompt of the final answer, with the slots problem and memory."""
    names = ("problem", "memory")
    if style == "compact":
        message = "".join(_COMPACT_PARTS[name] for name in names)
    else:
        message = _FINAL.replace("{parts}", "\n\n".join(_OFFICIAL_PARTS[name] for name in names))
    return TokenTemplate(tokenizer, message, slots=names)
