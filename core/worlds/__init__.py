"""This package makes the start model, the data, the warm start and the baselines of a preset from one World.

README.md shows what to import. `command`, `needles` and `start_model`, which imports PyTorch, are public as whole
modules.
"""

from core.worlds.world import (
    CHAT_TEMPLATE,
    SPLITS,
    TOOL_TEMPLATE,
    Example,
    Split,
    TextPolicy,
    World,
    cut_batches,
    draw_batches,
    encode_turn,
    find_world,
    write_call,
)

__all__ = [
    "CHAT_TEMPLATE",
    "SPLITS",
    "TOOL_TEMPLATE",
    "Example",
    "Split",
    "TextPolicy",
    "World",
    "command",
    "cut_batches",
    "draw_batches",
    "encode_turn",
    "find_world",
    "needles",
    "start_model",
    "write_call",
]
