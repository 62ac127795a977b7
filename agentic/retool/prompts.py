"""Holds what the policy is told, and the tags of its code. The texts are ours; the tags are the paper's."""

from core.text.tool_calls import ToolSchema

CODE, CODE_END = "<code>", "</code>"
"""Enclose a program that the policy writes; its turn stops at the second."""

INTERPRETER = "\n<interpreter>\n{output}\n</interpreter>\n"
"""Follows a program and shows what it printed, or how it failed."""

INSTRUCTIONS = (
    "\n\nThink step by step. At any point you may compute with Python: write a whole program between <code> and "
    "</code>, and print what you want to know. It is run at once, and its output follows between <interpreter> and "
    "</interpreter>. No program knows the variables of another. Write your final answer as \\boxed{answer}."
)
"""Follows the question, unless the policy knows the tags already."""

FENCE_INSTRUCTIONS = (
    "\n\nThink step by step. Compute with Python: write a whole program in a ```python block, and print what you want "
    "to know. It is run at once, and its output follows in an ```output block. No program knows the variables of "
    "another. Write your final answer as \\boxed{answer}."
)
CALL_INSTRUCTIONS = (
    "\n\nThink step by step. At any point you may compute with the tool python. Write your final answer as "
    "\\boxed{answer}."
)
TOOL = ToolSchema(
    "python",
    "Runs a whole Python program and shows what it prints. No program knows the variables of another.",
    {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)
"""Runs programs where they are calls of a tool."""
