"""Runs computations: the model of role `coder` writes Python for a query, and the sandbox runs it.

`source: query` asks no model: the query itself is the code, or an expression whose value is printed.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PrivateAttr

from core.sandbox import Backend, KeptRuns, Sandbox, SandboxLimits, SandboxResult, SandboxUnavailable
from core.text.programs import extract_program, print_value
from core.tools.base import Interrupt, Query, Tool, ToolContext, ToolError, ToolResult, ToolStatus

_PROMPT = """\
Write a Python program that answers the query below. It runs once, without input, files or network; the standard \
library, numpy and sympy are available. Print the result with print(); only what is printed is seen.

Query: {query}

Answer with the program alone, in one block:
```python
<program>
```"""


class SandboxFailed(Interrupt):
    """Reports that the isolation could not be set up: nothing ran, and the program is not to blame."""


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
    """Limits the seconds of a call, with the coder's writing; `sandbox.timeout_s` limits the program alone."""
    sandbox: SandboxLimits = SandboxLimits(timeout_s=30.0)
    backend: Literal["auto"] | Backend = "auto"
    remember: NonNegativeInt = 0
    """Says how many programs' results are kept and returned again. It needs programs without randomness."""
    _sandbox: Sandbox = PrivateAttr()
    _runs: KeptRuns[SandboxResult] = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        try:
            self._sandbox = Sandbox(self.sandbox, self.backend)
        except SandboxUnavailable as error:
            raise ToolError(f"tool {self.name}: {error}") from error
        self._runs = KeptRuns(self.remember, lambda run: run.status in ("ok", "error"))

    @property
    def isolation(self) -> str:
        return self._sandbox.backend

    @property
    def required_roles(self) -> tuple[str, ...]:
        return (self.role,) if self.source == "coder" else ()

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        if self.source == "query":
            code = print_value(extract_program(arguments.query))
        else:
            code = extract_program(await context.ask(self.role, _PROMPT.replace("{query}", arguments.query)))
        if not code:
            return ToolResult("error", "There is no program to run.", error="no_code")
        try:
            run = await self._runs.find(code, lambda: self._sandbox.run(code))
        except SandboxUnavailable as error:
            raise SandboxFailed(str(error)) from error
        output = run.stdout.strip()
        if run.status == "ok":
            return ToolResult("ok", output or "The program printed nothing.")
        status: ToolStatus = "timeout" if run.status == "timeout" else "error"
        text = f"The program ended with {run.status}.\n{run.stderr.strip()}\n{output}".strip()
        return ToolResult(status, text, error=run.status)

    async def close(self) -> None:
        self._runs.close()
