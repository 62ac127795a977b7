"""Tools found by name and called within their limits, whatever they do."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from pydantic import Field

from core.tools.base import Arguments, Interrupt, Query, Tool, Toolbox, ToolContext, ToolError, ToolResult, make_tool
from core.tools.base_generator import BaseGenerator
from core.tools.python_coder import PythonCoder


class Add(Tool):
    class Numbers(Arguments):
        first: int = Field(description="the larger one")
        second: int | None = 1
        third: Query | None = None

    arguments: ClassVar[type[Arguments]] = Numbers
    name: str = "add_numbers"
    description: str = "Adds."
    best_practice: str = "Small numbers."
    offset: int = 0

    async def call(self, arguments: Numbers, context: ToolContext) -> ToolResult:
        return ToolResult("ok", str(arguments.first + (arguments.second or 0) + self.offset))


class Failing(Tool):
    name: str = "failing"
    description: str = "Fails."

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        match arguments.query:
            case "sleep":
                await asyncio.sleep(60)
            case "timeout":
                raise TimeoutError("its own")
            case "interrupt":
                raise Interrupt("no engine")
            case "cancel":
                raise asyncio.CancelledError
            case "text":
                return "no result"  # type: ignore[return-value]
        raise ValueError("no such case")


CONTEXT = ToolContext()


@pytest.mark.parametrize("name", ["add_numbers", "Add Numbers", " ADD-NUMBERS ", "add__numbers"])
def test_found_by_name(name):
    tools = Toolbox([Add(), Failing()])
    assert tools.find(name) is next(iter(tools))
    assert tools.find("add") is None
    assert tools.find("") is None


async def test_arguments_are_typed():
    tools = Toolbox([Add(offset=10)])
    (add,) = tools
    good = await tools.call(add, {"first": 2}, CONTEXT)
    assert (good.status, good.text) == ("ok", "13")
    assert good.seconds >= 0
    for bad in ({}, {"first": "two"}, {"first": 1, "third": 3}):
        result = await tools.call(add, bad, CONTEXT)
        assert result.status == "bad_arguments"
        assert "do not fit add_numbers" in result.text


@pytest.mark.parametrize(
    ("query", "timeout_s", "status", "text", "error"),
    [
        ("x", 60, "error", "failing failed: no such case", "ValueError('no such case')"),
        ("timeout", 60, "error", "failing failed: its own", "TimeoutError('its own')"),
        ("sleep", 0.05, "timeout", "failing gave no result within 0.05 seconds.", None),
    ],
)
async def test_what_fails_inside_a_tool_is_a_result(query, timeout_s, status, text, error):
    (tool,) = tools = Toolbox([Failing(timeout_s=timeout_s)])
    result = await tools.call(tool, {"query": query}, CONTEXT)
    assert (result.status, result.text, result.error) == (status, text, error)


@pytest.mark.parametrize(
    ("query", "error", "told"),
    [
        ("interrupt", Interrupt, "no engine"),
        ("cancel", asyncio.CancelledError, None),
        ("text", ToolError, "tool failing: call returned 'no result'"),
    ],
)
async def test_interrupts_and_cancellation_pass_and_what_is_no_result_is_refused_by_name(query, error, told):
    (tool,) = tools = Toolbox([Failing()])
    with pytest.raises(error, match=told):
        await tools.call(tool, {"query": query}, CONTEXT)


def test_a_prompt_tells_the_types_of_arguments_and_what_they_are():
    told = "first (integer: the larger one), second (integer or null), third (any or null)"
    assert f"  Arguments: {told}\n" in Add().describe()


def test_made_from_a_path():
    tool = make_tool("core.tools.base_generator.BaseGenerator", {"name": "thinker", "role": "r"})
    assert isinstance(tool, BaseGenerator)
    assert (tool.name, tool.required_roles) == ("thinker", ("r",))
    for path in ("core.tools.base_generator.Nothing", "nothing.at.All", "Nothing", "core.tools.base.Query"):
        with pytest.raises(ToolError, match=path):
            make_tool(path, {})
    with pytest.raises(ToolError, match=r"timeout_s: Input should be greater than 0.*Its options: .*role"):
        make_tool("core.tools.base_generator.BaseGenerator", {"timeout_s": 0})
    with pytest.raises(ToolError, match="the method itself sets name; remove it"):
        make_tool("core.tools.base_generator.BaseGenerator", {"name": "thinker"}, name="base_generator")


def test_a_nested_option_leaves_the_tools_other_defaults():
    tool = make_tool("core.tools.python_coder.PythonCoder", {"sandbox": {"memory_mb": 256}}, name="coder")
    assert isinstance(tool, PythonCoder)
    assert (tool.sandbox.memory_mb, tool.sandbox.timeout_s) == (
        256,
        PythonCoder.model_fields["sandbox"].default.timeout_s,
    )
