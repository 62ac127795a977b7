"""python_coder: the coder's program, run in the sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.sandbox import SandboxResult, SandboxUnavailable
from core.text.programs import extract_program, print_value
from core.tools.base import Query, ToolContext, ToolError
from core.tools.python_coder import PythonCoder, SandboxFailed


def says(reply: str) -> ToolContext:
    async def ask(role: str, message: str) -> str:
        assert role == "coder"
        assert "Query: the query" in message
        return reply

    return ToolContext(ask)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("print(1)", "print(1)"),
        ("Sure:\n```python\nprint(1)\n```\nDone.", "print(1)"),
        ("```py\nprint(1)", "print(1)"),
        ("```python\r\nprint(1)\r\n```", "print(1)"),
        ("print(1)\n```", "print(1)"),
        ("```tool_code\nprint(1)\n```", "print(1)"),
        ("def f(n=5):\n    return n\nprint(f())\n```", "def f(n=5):\n    return n\nprint(f())"),
        ("x\nprint(1)\n```", "x\nprint(1)"),
        ("```python-repl\n>>> 1 + 1111111111111111\n```\n```python\nprint(1)\n```", "print(1)"),
        ("So:\n```{python}\nprint(1)\n```\n```text\nthe first of all numbers\n```", "print(1)"),
        ("```python title=x\nprint(1)\n```", "print(1)"),
        ("```\nx\n```\nor\n```python\nprint(1)\n```", "print(1)"),
        ("``` ```", ""),
        (
            "```bash\npip install numpy\n```\n```python\nprint(1)\n```\nIt prints:\n```\nthe first of all numbers\n```",
            "print(1)",
        ),
        ("```python\n```\nor\n```\nprint(1)\n```", "print(1)"),
        ("1. So:\n   ```python\n   x = 1\n   print(x)\n   ```", "x = 1\nprint(x)"),
        ("```\n\tfor i in a:\n\t\tprint(i)\n\tprint(a)\n```", "for i in a:\n\tprint(i)\nprint(a)"),
        ("s = '```'\nprint(s, '```')", "s = '```'\nprint(s, '```')"),
        ("So:\n```python\nprint('```')\nx = 1\n```\nDone.", "print('```')\nx = 1"),
        ("So: ```python\nprint(1)\n```\nDone", "print(1)"),
        ("```python\nprint(1)```", "print(1)"),
        ("    x = 1\n    print(x)", "x = 1\nprint(x)"),
        ("x = 1\n  for i in a:\n      print(i)\n  print(x)", "x = 1\nfor i in a:\n    print(i)\nprint(x)"),
        ("for i in a:\n  print(i)", "for i in a:\n  print(i)"),
        ("s = '''a\n   \n  b'''", "s = '''a\n   \n  b'''"),
        ("", ""),
    ],
)
def test_the_program_of_a_reply(reply, code):
    assert extract_program(reply) == code


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("12 * 7", "print(12 * 7\n)"),
        (" 1,\n", "print(1,\n)"),
        ("12 * 7  # seven dozen", "print(12 * 7  # seven dozen\n)"),
        ("x = 1\nprint(x)", "x = 1\nprint(x)"),
        ("print(2 + 2)", "print(2 + 2)"),
        ("print(2) or 3", "print(print(2) or 3\n)"),
        ("twelve times", "twelve times"),
        ("\x00", "\x00"),
    ],
)
def test_an_expression_is_printed(code, printed):
    assert print_value(code) == printed


@pytest.mark.usefixtures("isolation")
@pytest.mark.parametrize(
    ("reply", "status", "error", "shown"),
    [
        ("```python\nprint(6 * 7)\n```", "ok", None, "42"),
        ("```python\nx = 1\n```", "ok", None, "printed nothing"),
        ("print(1)\n1 / 0", "error", "error", "ZeroDivisionError"),
        ("while True: pass", "timeout", "timeout", "ended with timeout"),
        ("", "error", "no_code", "no program"),
    ],
)
async def test_what_came_of_the_program(reply, status, error, shown):
    tool = PythonCoder(sandbox={"timeout_s": 2})
    result = await tool.call(Query(query="the query"), says(reply))
    assert (result.status, result.error) == (status, error)
    assert shown in result.text


@pytest.mark.usefixtures("isolation")
async def test_the_query_as_the_program():
    tool = PythonCoder(source="query")
    assert tool.required_roles == ()
    result = await tool.call(Query(query="12 * 7"), says(""))
    assert (result.status, result.text) == ("ok", "84")
    indented = "  for i in range(2):\n      print(i)\n  print('end')"
    for query in (indented, f"1. So:\n```python\n{indented}\n```"):
        assert (await tool.call(Query(query=query), says(""))).text == "0\n1\nend"
    result = await tool.call(Query(query="twelve times"), says(""))
    assert result.status == "error"
    assert "SyntaxError" in result.text


def fake_sandbox(monkeypatch: pytest.MonkeyPatch, run: Any, error: Exception | None = None) -> None:
    """Put a sandbox in the place of ours that runs code by `run`, or cannot be made."""

    class Fake:
        def __init__(self, limits, backend):
            if error:
                raise error

        async def run(self, code):
            return await run(code)

    monkeypatch.setattr("core.tools.python_coder.Sandbox", Fake)


async def test_without_isolation_nothing_is_made_and_nothing_is_blamed(monkeypatch):
    async def run(code):
        raise SandboxUnavailable("gone")

    fake_sandbox(monkeypatch, run, SandboxUnavailable("no user namespaces"))
    with pytest.raises(ToolError, match="python_coder: no user namespaces"):
        PythonCoder()
    fake_sandbox(monkeypatch, run)
    with pytest.raises(SandboxFailed, match="gone"):
        await PythonCoder(source="query").call(Query(query="1"), says(""))


@pytest.mark.usefixtures("isolation")
async def test_identical_programs_run_once_where_asked():
    code = Query(query="import time; print(time.time_ns())")
    coder = PythonCoder(source="query", remember=1)
    first, second = await asyncio.gather(coder.call(code, says("")), coder.call(code, says("")))
    assert first.text == second.text
    assert (await coder.call(Query(query="1 + 1"), says(""))).text == "2"
    assert (await coder.call(code, says(""))).text != first.text  # only the latest one is remembered
    await coder.close()
    forgetful = PythonCoder(source="query")
    assert (await forgetful.call(code, says(""))).text != (await forgetful.call(code, says(""))).text


async def test_a_run_without_a_result_is_not_remembered(monkeypatch):
    runs = []

    async def run(code):
        runs.append(code)
        if len(runs) == 1:
            raise SandboxUnavailable("gone")
        return SandboxResult("timeout" if len(runs) == 2 else "ok", "2", "", 0, 0.1, "none")

    fake_sandbox(monkeypatch, run)
    coder = PythonCoder(source="query", remember=8)
    with pytest.raises(SandboxFailed):
        await coder.call(Query(query="1 + 1"), says(""))
    statuses = [(await coder.call(Query(query="1 + 1"), says(""))).status for _ in range(3)]
    assert statuses == ["timeout", "ok", "ok"]
    assert len(runs) == 3


async def test_a_run_that_nobody_waited_for_is_forgotten_too(monkeypatch):
    begun, end, runs = asyncio.Event(), asyncio.Event(), []

    async def run(code):
        runs.append(code)
        begun.set()
        await end.wait()
        return SandboxResult("timeout" if len(runs) == 1 else "ok", "2", "", 0, 0.1, "none")

    fake_sandbox(monkeypatch, run)
    coder = PythonCoder(source="query", remember=8)
    waiting = asyncio.create_task(coder.call(Query(query="1 + 1"), says("")))
    await begun.wait()
    waiting.cancel()  # its rollout's deadline has passed
    with pytest.raises(asyncio.CancelledError):
        await waiting
    end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await coder.call(Query(query="1 + 1"), says(""))).status == "ok"
    assert len(runs) == 2
