"""MemAgent's prompts as token templates.

`official` keeps the wording of the paper's released templates (BytedTsinghua-SIA/MemAgent, Apache-2.0), on which the
released checkpoints depend; `compact` has the same parts in a few tokens, for models with a small context.
`prefix_friendly` puts the section before the memory: the members of a group then share all of a chunk's prefill.
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


def update_template(tokenizer: Any, style: Style, order: Order, gate: bool) -> TokenTemplate:
    """The prompt of a memory update, with slots problem, section and memory."""
    names = _ORDERS[order]
    if style == "compact":
        message = "".join(_COMPACT_PARTS[name] for name in names)
    else:
        parts = "\n\n".join(_OFFICIAL_PARTS[name] for name in names)
        message = _UPDATE.replace("{gate}", _GATE if gate else "").replace("{parts}", parts)
    return TokenTemplate(tokenizer, message, slots=names)


def final_template(tokenizer: Any, style: Style) -> TokenTemplate:
    """The prompt of the final answer, with slots problem and memory."""
    names = ("problem", "memory")
    if style == "compact":
        message = "".join(_COMPACT_PARTS[name] for name in names)
    else:
        message = _FINAL.replace("{parts}", "\n\n".join(_OFFICIAL_PARTS[name] for name in names))
    return TokenTemplate(tokenizer, message, slots=names)
