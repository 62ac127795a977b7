"""Holds AgentFlow's prompts: one message with {slots} for each role of the flow, and the released tools' metadata.

`official` follows the released prompts (lupantech/AgentFlow, MIT; slime-agentic's are nearly the same) in layout and
field names, and asks for a boxed answer. `compact` has the same inputs in a few tokens, for small models. `released` is
the released prompts byte for byte: released planners were trained on them.

Source: lupantech/AgentFlow at b940064, agentflow/agentflow: models/planner.py, executor.py, verifier.py and memory.py,
engine/vllm.py, and tools/*/tool.py. tests/golden/prompts compares `released` with it. Tools, their metadata and the
memory enter these prompts as Python prints its lists and dictionaries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from agentic.agentflow.formats import Style

RELEASED_SYSTEM = "You are a helpful, creative, and smart assistant."
"""Holds the system message of the roles under `released`; without one the chat template decides."""
RELEASED_REQUEST = (
    "When ready, output the final answer enclosed in <answer> and </answer> tags. "
    "Do not generate any content after the </answer> tag."
)
"""Ends every question of the released test/aime24/data/data.json, without a space before it, for all roles."""
MESSAGE = "{message}"
"""Asks any other role: the text of a tool or of the grader is the user's message."""


@cache
def read_messages(style: Style) -> Mapping[str, str]:
    """Return the message to each role of the flow."""
    own, released = (
        yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
        for name in ("prompts.yaml", "released_prompts.yaml")
    )
    messages = {**own, "fences": {**own["official"], **own["fences"]}, "released": released}
    return messages[style]


@cache
def read_tools() -> dict[str, dict[str, Any]]:
    """Return the released tools' metadata by name, in the order in which the released test/*/run.sh enables them."""
    text = Path(__file__).with_name("released_tools.json").read_text(encoding="utf-8")
    return {tool["tool_name"]: tool for tool in json.loads(text)}


def describe_released_task(question: str, names: Sequence[str]) -> dict[str, str]:
    """Return the slots `question`, `tools` and `metadata` for a toolbox whose tools have these names."""
    known, names = read_tools(), sorted(names)
    question = question.removesuffix(RELEASED_REQUEST) + RELEASED_REQUEST
    return {"question": question, "tools": str(names), "metadata": str({name: known[name] for name in names})}


def read_released_answer(text: str) -> str:
    """Return what stands in the last <answer> tags, or `text` itself without any: what the released judge reads."""
    return (re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL) or [text])[-1].strip()


def render_released_memory(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the memory of steps with tool_name, sub_goal, command and result."""
    return str({f"Action Step {number}": dict(step) for number, step in enumerate(steps, 1)})
