"""Keeps what a rollout has done so far. A memory is a value: each question begins an empty one, each step makes a new
one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from agentic.agentflow.formats import Style
from agentic.agentflow.prompts import render_released_memory
from core.text.tokenizer import Tokenizer, encode_text
from core.tools.base import ToolStatus

Status = ToolStatus | Literal["malformed_step", "malformed_command", "tool_not_found"]


@dataclass(frozen=True, slots=True)
class Step:
    """Describes one action. `status` is `ok` or names what went wrong; `result` is what the planner reads of it."""

    status: Status
    tool: str = ""
    sub_goal: str = ""
    command: str = ""
    result: str = ""

    def as_released(self) -> dict[str, Any]:
        """Return the step as the released code keeps it; the results of a command are a list there."""
        result = self.result if self.status in ("malformed_step", "tool_not_found") else [self.result]
        return {"tool_name": self.tool, "sub_goal": self.sub_goal, "command": self.command, "result": result}


@dataclass(frozen=True, slots=True)
class Memory:
    steps: tuple[Step, ...] = ()

    def add(self, step: Step) -> Memory:
        return replace(self, steps=(*self.steps, step))

    @property
    def results(self) -> list[str]:
        """Return what the tools gave, step by step, or why there is nothing: none of it in the planner's words."""
        return [step.result if step.status == "ok" else step.status for step in self.steps]

    def render(self, style: Style) -> str:
        """Return the memory as the roles read it."""
        if style == "compact":
            return "".join(map(_line, self.steps))
        if style == "released":
            return render_released_memory([step.as_released() for step in self.steps])
        return "\n\n".join(_block(number, step) for number, step in enumerate(self.steps, 1)) or "none so far"


def _line(step: Step) -> str:
    result = step.result if step.status == "ok" else step.status.replace("_", " ")
    return f" {step.tool or '?'} : {step.sub_goal or '?'} = {result}\n"


def _block(number: int, step: Step) -> str:
    fields = {"Tool Name": step.tool, "Sub-Goal": step.sub_goal, "Command": step.command, "Result": step.result}
    lines = [f"{name}: {value}" for name, value in fields.items() if value]
    return "\n".join([f"Action Step {number}", *lines])


def shorten(tokenizer: Tokenizer, text: str, max_tokens: int) -> str:
    """Return `text`, or its first and last tokens with a note between them: about `max_tokens` tokens."""
    # No token is shorter than one byte, so a text of so few bytes need not be encoded.
    if len(text.encode()) <= max_tokens:
        return text
    ids = encode_text(tokenizer, text)
    if len(ids) <= max_tokens:
        return text
    head, tail = ids[: max_tokens - max_tokens // 2], ids[len(ids) - max_tokens // 2 :]
    note = f"\n[... {len(ids) - max_tokens} tokens left out ...]\n"
    # Of a character that is cut, nothing is shown.
    return str(tokenizer.decode(head)).rstrip("\ufffd") + note + str(tokenizer.decode(tail)).lstrip("\ufffd")
