"""The tool that computes: Python for a query, written by the model of role `coder`, run in the sandbox.

With `source: query` no model is asked: the query itself is the code, or an expression whose value is printed.
"""

from __future__ import annotations

import ast
import asyncio
import re
import warnings
from functools import partial
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PrivateAttr

from core.tools.base import Interrupt, Query, Tool, ToolContext, ToolError, ToolResult, ToolStatus
from core.tools.sandbox import Sandbox, SandboxLimits, SandboxResult, SandboxUnavailable
from core.tools.sandbox.backends import Backend

_PROMPT = """\
Write a Python program that answers the query below. It runs once, without input, files or network; the standard \
library, numpy and sympy are available. Print the result with print(); only what is printed is seen.

Query: {query}

Answer with the program alone, in one block:
```python
<program>
```"""


class SandboxFailed(Interrupt):
    """The isolation could not be set up: nothing ran, and the program is not to blame."""


class PythonCoder(Tool):
    name: str = "python_coder"
    description: str = "Writes a short Python program for a query in plain language, runs it, and returns its output."
    limits: str = "No files, no network, no input; seconds of run time; standard library, numpy and sympy only."
    best_practice: str = (
        "Use it for arithmetic, algebra, counting and search. State the task in words with all numbers it needs; do "
        "not write code."
    )
    source: Literal["coder", "query"] = "coder"
    role: str = "coder"
    timeout_s: PositiveFloat = 600.0
    """Of a call, the coder's writing included; `sandbox.timeout_s` is that of the program."""
    sandbox: SandboxLimits = SandboxLimits(timeout_s=30.0)
    backend: Literal["auto"] | Backend = "auto"
    remember: NonNegativeInt = 0
    """The results of so many latest programs are given again for the same program: for programs without chance."""
    _sandbox: Sandbox = PrivateAttr()
    _runs: dict[str, asyncio.Task[SandboxResult]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        try:
            self._sandbox = Sandbox(self.sandbox, self.backend)
        except SandboxUnavailable as error:
            raise ToolError(f"tool {self.name}: {error}") from error

    @property
    def asks(self) -> tuple[str, ...]:
        return (self.role,) if self.source == "coder" else ()

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        if self.source == "query":
            code = printing(arguments.query)
        else:
            code = program(await context.ask(self.role, _PROMPT.replace("{query}", arguments.query)))
        if not code:
            return ToolResult("error", "There is no program to run.", error="no_code")
        try:
            run = await self._run(code)
        except SandboxUnavailable as error:
            raise SandboxFailed(str(error)) from error
        output = run.stdout.strip()
        if run.status == "ok":
            return ToolResult("ok", output or "The program printed nothing.")
        status: ToolStatus = "timeout" if run.status == "timeout" else "error"
        text = f"The program ended with {run.status}.\n{run.stderr.strip()}\n{output}".strip()
        return ToolResult(status, text, error=run.status)

    async def _run(self, code: str) -> SandboxResult:
        """A run of `code`, one that is still under way or remembered if there is one."""
        if not self.remember:
            return await self._sandbox.run(code)
        run = self._runs.pop(code, None)
        if run is None:
            run = asyncio.create_task(self._sandbox.run(code))
            run.add_done_callback(partial(self._forget_bad_luck, code))
        self._runs[code] = run
        for oldest in list(self._runs)[: len(self._runs) - self.remember]:
            del self._runs[oldest]
        return await asyncio.shield(run)

    def _forget_bad_luck(self, code: str, run: asyncio.Task[SandboxResult]) -> None:
        """Forget a run that says nothing about its program, such as a timeout: another time it may have more luck."""
        told = not run.cancelled() and not run.exception() and run.result().status in ("ok", "error")
        if not told and self._runs.get(code) is run:
            del self._runs[code]

    async def close(self) -> None:
        for run in self._runs.values():
            run.cancel()
        self._runs.clear()


def program(reply: str) -> str:
    """The longest fenced block of a reply, also one that was cut off; the whole reply if it has none."""
    blocks = reply.split("```")[1::2]
    code = max(blocks, key=len, default=reply)
    return re.sub(r"\A(?:python3?|py)?[ \t]*\n", "", code, flags=re.IGNORECASE).strip()


def printing(code: str) -> str:
    """`code`, or the printing of its value where it is an expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in what a model wrote
            expression = ast.parse(code.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "print":
        return code
    return f"print({code.strip()}\n)"  # on a line of its own: a comment may end the expression
