"""Runs the programs of a rollout in the sandbox. A program that asks the policy is run again with the answers.

Nothing goes into a running program of the sandbox, and no process of it outlives its program. Both are kept: a question
ends the run, as does the end of the program, and what came before is replayed (inside.py), as systems for durable
execution do. So the interpreter has a state, and all answers are variables in it, while no change of the sandbox is
needed. The price is time: a rollout of n programs and m questions runs a part of its programs n + m times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from agentic.rlm import inside
from agentic.rlm.config import RLMSection
from agentic.rlm.prompts import CUT, ENDED, NOTHING

Ask = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""Answers the prompts of one call: as many texts, in the same order."""

HARNESS = Path(inside.__file__).read_text()
NO_REPORT = "no report"


class Report(BaseModel):
    """Holds what came out of the sandbox. A program may have written it itself, so nothing here is taken on trust."""

    model_config = ConfigDict(extra="forbid", strict=True)

    asks: list[str]
    printed: str
    characters: int
    final: str | None
    error: str
    killed: str = ""
    """Says how the sandbox ended the program, if it did."""

    @classmethod
    def of_killed(cls, how: str) -> Report:
        return cls(asks=[], printed="", characters=0, final=None, error="", killed=how)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Describes a program that came to its end. `text` is what the policy reads, `final` the answer that it gave."""

    text: str
    final: str | None
    failed: bool


class Programs:
    """Runs replays in a sandbox. Equal ones run once, as long as their results are kept (`rlm.remember`).

    Raises:
        SandboxUnavailable: no isolation works here.
    """

    def __init__(self, config: RLMSection):
        from core.sandbox import (  # here, because slime imports methods in processes that run no program
            KeptRuns,
            Sandbox,
        )

        self._sandbox = Sandbox(config.sandbox, config.backend)
        self._kept = KeptRuns[Report](config.remember, lambda report: not report.killed)
        self.isolation = self._sandbox.backend
        self.largest_document = (config.sandbox.folder_mb << 20) // 10
        """Limits the characters of a document: in the sandbox it is a file, of up to ten bytes for each."""

    async def play(self, *arguments: Any) -> Report:
        """Run `inside.play` and return its report.

        Raises:
            SandboxUnavailable: the isolation could not be set up, so nothing ran.
        """
        code = f"{HARNESS}\nreport(*{arguments!r})\n"
        key = sha256(code.encode("utf-8", "surrogatepass")).digest()  # the document is in it
        return await self._kept.find(key, lambda: self._run(code))

    async def _run(self, code: str) -> Report:
        result = await self._sandbox.run(code)
        if result.status != "ok":
            return Report.of_killed(result.status)
        try:
            return Report.model_validate_json(result.stdout.rstrip("\n").rpartition("\n")[2])
        except ValidationError:  # the program wrote to the stream behind print(), or ended the process
            return Report.of_killed(NO_REPORT)

    def close(self) -> None:
        self._kept.close()


class Notebook:
    """Holds the programs of one rollout and the answers that they got."""

    def __init__(self, programs: Programs, context: str, question: str, subcalls: int, characters: int):
        self._programs = programs
        self._about = (context, question)
        self._subcalls = subcalls
        self._characters = characters
        self._ran: list[str] = []
        self._answered: list[tuple[list[str], list[str]]] = []

    async def run(self, program: str, ask: Ask) -> ProgramResult:
        """Run a program behind those before it, and let `ask` answer what it asks.

        A program that the sandbox stops leaves nothing behind but the sub-calls that it used.
        """
        before = len(self._answered)
        while True:
            report = await self._programs.play(
                *self._about, [*self._ran, program], self._answered, self._subcalls, self._characters
            )
            if not report.asks or report.killed:
                break
            if len(report.asks) > self._subcalls - self._count_asked():
                report = Report.of_killed(NO_REPORT)  # inside.py asks no more than it may
                break
            self._answered.append((report.asks, list(await ask(report.asks))))
        if report.killed:
            self._subcalls -= self._count_asked(before)
            del self._answered[before:]
            return ProgramResult(ENDED.format(status=report.killed), None, failed=True)
        self._ran.append(program)
        shown = self._characters  # of a report that the program wrote itself, too
        text, error = report.printed[:shown].strip("\n"), report.error[:shown]
        if report.characters > shown:
            text += CUT.format(characters=report.characters)
        return ProgramResult("\n".join(filter(None, (text, error))) or NOTHING, report.final, error != "")

    def _count_asked(self, first: int = 0) -> int:
        return sum(len(asks) for asks, _ in self._answered[first:])
