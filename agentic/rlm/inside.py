"""Is what runs in the sandbox: the policy's programs, one after the other, with the document as a variable.

It is sent as text and imports nothing of this project. Nothing can be asked of the policy while a program runs. So a
program stops at a question that has no answer yet, and all is run again from the start with the answer at hand. An
answer belongs to a question by its place; where the prompts differ, the program did not do the same again.
"""

from __future__ import annotations

import io
import json
import random
from contextlib import redirect_stdout

TYPE_CHECKING = False  # importing typing takes longer than most programs
if TYPE_CHECKING:
    from typing import Any

REFUSAL = "[not answered: no calls are left]"
CHANGED = "run again, the program asked something else: it must not depend on chance, time or the order of a set"


class Asked(BaseException):
    """Stops a program at a question that has no answer yet."""


class Interpreter:
    """Runs programs that share their variables. `answered` holds the prompts of each call so far, with the answers."""

    def __init__(self, context: str, question: str, answered: list[tuple[list[str], list[str]]], subcalls: int):
        self.answered = answered
        self.place = 0
        self.left = subcalls
        self.asks: list[str] = []
        self.final: str | None = None
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "context": context,
            "question": question,
            "llm_query": self.llm_query,
            "llm_query_batched": self.llm_query_batched,
            "FINAL": self.give_final,
        }

    def llm_query(self, prompt: object) -> str:
        return self.llm_query_batched([prompt])[0]

    def llm_query_batched(self, prompts: Any) -> list[str]:
        prompts = [str(prompt) for prompt in prompts]
        asked = prompts[: self.left]
        self.left -= len(asked)
        return [*(self.recall(asked) if asked else []), *[REFUSAL] * (len(prompts) - len(asked))]

    def recall(self, prompts: list[str]) -> list[str]:
        """Return the answers to prompts that were asked before, or stop here."""
        if self.asks or self.place == len(self.answered):
            self.asks = self.asks or prompts  # the first question counts, if the program caught the stop and went on
            raise Asked
        known, answers = self.answered[self.place]
        if known != prompts:
            raise RuntimeError(CHANGED)
        self.place += 1
        return list(answers)

    def give_final(self, value: object) -> None:
        self.final = str(value)

    def run(self, program: str) -> str:
        """Run a program and return its error, or an empty text."""
        try:
            exec(compile(program, "<program>", "exec"), self.names)
        except (Asked, SystemExit):
            pass
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        return ""


def play(
    context: str,
    question: str,
    programs: list[str],
    answered: list[tuple[list[str], list[str]]],
    subcalls: int,
    characters: int,
) -> dict[str, Any]:
    """Run all programs and report on the last one: what it asks, printed, answered for good, and its error."""
    random.seed(0)
    interpreter = Interpreter(context, question, answered, subcalls)
    output, error = io.StringIO(), ""
    for program in programs:
        output = io.StringIO()
        with redirect_stdout(output):
            error = interpreter.run(program)
    text = output.getvalue()
    return {
        "asks": interpreter.asks,
        "printed": text[:characters],
        "characters": len(text),
        "final": interpreter.final,
        "error": error[:characters],
    }


def report(*arguments: Any) -> None:
    """Print the report as one line of ASCII, whatever the programs printed around it."""
    print("\n" + json.dumps(play(*arguments)))
