"""The tool that sends one question to the language model of role `base_generator`."""

from __future__ import annotations

from pydantic import PositiveFloat

from core.tools.base import Query, Tool, ToolContext, ToolResult


class BaseGenerator(Tool):
    name: str = "base_generator"
    description: str = "A general language model that answers a query, step by step, from what it knows."
    limits: str = "It may be wrong on facts and on long calculations, and sees nothing but the query."
    best_practice: str = "Use it for reasoning, definitions and text. Put everything it needs into the query."
    timeout_s: PositiveFloat = 600.0
    role: str = "base_generator"

    @property
    def required_roles(self) -> tuple[str, ...]:
        return (self.role,)

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        reply = (await context.ask(self.role, arguments.query)).strip()
        if not reply:
            return ToolResult("error", f"{self.role} gave no answer.", error="no_answer")
        return ToolResult("ok", reply)
