"""Holds the prompts and tool metadata of the released AgentFlow, byte for byte: released planners were trained on them.

Source: lupantech/AgentFlow (MIT) at b940064, agentflow/agentflow: models/planner.py, executor.py, verifier.py and
memory.py, engine/vllm.py, and tools/*/tool.py. tests/golden/prompts compares all of them with it. Tools, their
metadata and the memory enter the prompts as Python prints its lists and dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

SYSTEM = "You are a helpful, creative, and smart assistant."

PROMPTS = Path(__file__).with_name("released_prompts.yaml")
TOOLS = Path(__file__).with_name("released_tools.json")
"""Holds the metadata of the four tools, in the order in which the released test/*/run.sh enables them."""


@cache
def read_messages() -> dict[str, str]:
    """Return the released message to each role."""
    messages: dict[str, str] = yaml.safe_load(PROMPTS.read_text(encoding="utf-8"))
    return messages


@cache
def read_tools() -> dict[str, dict[str, Any]]:
    """Return the released tools' metadata by name."""
    return {tool["tool_name"]: tool for tool in json.loads(TOOLS.read_text(encoding="utf-8"))}


def describe_tools(names: Sequence[str]) -> dict[str, str]:
    """Return the slots `tools` and `metadata` for a toolbox whose tools have these names."""
    known = read_tools()
    return {"tools": str(sorted(names)), "metadata": str({name: known[name] for name in names})}


def describe_tool(name: str) -> str:
    return str(read_tools()[name])


def render_memory(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the memory of steps with tool_name, sub_goal, command and result."""
    return str({f"Action Step {number}": dict(step) for number, step in enumerate(steps, 1)})
