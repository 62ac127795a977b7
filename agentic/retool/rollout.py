"""ReTool: the policy writes programs while it thinks, reads what they print, and answers in a box.

Paper: "ReTool: Reinforcement Learning for Strategic Tool Use in LLMs", arXiv 2504.11536. Port studied: slime's
examples/retool. As in both, each program runs in a process of its own, which knows no variable of the one before, and
what the interpreter shows is not trained. As in the paper, a turn stops at </code>, and the reward is +1 or -1.

Departures from both, on purpose:
1. What was sampled is never encoded again: a rollout is one growing list of ids, and all of it is one row.
2. One form marks a program, the paper's <code> or another (`retool.format`). slime takes tags, calls and fences alike.
3. A program that is an expression prints its value. There, nothing is seen without print().
4. The first reply without a program ends the rollout. slime tells the policy that the reply is invalid, and goes on.
5. Only the last reply is graded. slime grades the whole text, in which a program may have printed the box.
6. Programs are isolated by the kernel, and not by a list of forbidden words. Where that fails, so does the rollout.

Run:  bash agentic/retool/run.sh                            # tiny: two CPU cores, minutes
      bash agentic/retool/run.sh --preset paper --backend slime --dry-run
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from agentic.retool.config import PRESETS, ReToolRecipe
from agentic.retool.formats import FORMATS
from core.config import RecipeError
from core.policy.base import Roles
from core.rewards.math_grader import MathGrader
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import begin_turns
from core.text.conversation import Renderer
from core.text.tokenizer import Ids, Tokenizer
from core.text.tool_calls import CallError
from core.tools.base import Interrupt, Query, ToolContext, ToolError, ToolResult, make_tool
from core.types import CALLS, FAILED_CALLS, Sampling, Task, Trajectory, Turn

End = Literal["answered", "cut_reply", "turn_limit", "context_limit"]
"""Names how a rollout ends. All but `answered` give the status `truncated`."""


class ReTool(Method):
    """Runs the method. Its one role, `policy`, writes the turns `act`: thoughts, programs and the answer.

    Raises:
        RecipeError: nothing here can isolate a program, or the chat template shows no calls in the format `calls`.
    """

    def __init__(self, recipe: ReToolRecipe, tokenizer: Tokenizer):
        config = self.config = recipe.retool
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        self.format = FORMATS[config.format](self.renderer)
        options = {"sandbox": config.sandbox, "backend": config.backend, "remember": config.remember}
        try:
            self.interpreter = make_tool("core.tools.python_coder.PythonCoder", options, source="query")
        except ToolError as error:
            raise RecipeError(f"retool.backend: {error}") from error
        self.sandbox = self.interpreter.isolation
        self.grader = MathGrader()

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Let the policy write on, run each program that it writes, and reward its answer.

        Raises:
            RolloutError: the question fills the context, or no sandbox can be had: neither is the policy's doing.
        """
        config, answer = self.config, ""
        end: End = "turn_limit"
        ids = self.open_conversation(task)
        runs: list[tuple[str, ToolResult]] = []
        turns = begin_turns(sampling, self.tokenizer, self.format.stop)
        for _ in range(config.max_turns):
            room = config.context_tokens - len(ids)
            completion = await turns.ask(roles["policy"], "act", ids, min(config.max_tokens, room))
            programs = self.format.find_programs(ids, completion.token_ids)
            ids += completion.token_ids
            if completion.finish_reason == "length" or not programs:
                end = "cut_reply" if completion.finish_reason == "length" else "answered"
                answer = str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))
                break
            results = [await self.run_program(program) for program in programs]
            runs += [(str(program), result) for program, result in zip(programs, results, strict=True)]
            shown = self.format.show_results(completion.token_ids, [result.text for result in results])
            if len(ids) + len(shown) >= config.context_tokens:
                end = "context_limit"
                break
            ids += shown
        return await self.make_trajectory(task, turns.recorded, runs, answer, end)

    def open_conversation(self, task: Task) -> Ids:
        """Return the ids of the question. Raises RolloutError if they leave no room for a reply."""
        instructions = self.format.instructions if self.config.explain_tags else ""
        earlier = self.renderer.plain_messages(task.earlier_messages)
        question = self.renderer.message("user", task.question, instructions)
        ids = self.renderer.render([*earlier, question], self.format.tools)
        if len(ids) >= self.config.context_tokens:
            raise RolloutError(
                "overlong_question",
                f"task {task.task_id}: field `question` takes {len(ids)} tokens, which leaves no room in "
                f"retool.context_tokens={self.config.context_tokens}",
            )
        return ids

    async def run_program(self, program: str | CallError) -> ToolResult:
        """Run a program in a process of its own. That it failed or took too long is a result, whose text says so.

        So is a call that cannot be read.

        Raises:
            RolloutError: the isolation could not be set up, so nothing ran (kind `sandbox`).
        """
        if isinstance(program, CallError):
            return ToolResult("bad_arguments", f"error: {program.message}", error=program.kind)
        try:
            return await self.interpreter.call(Query(query=program), ToolContext())
        except Interrupt as error:
            raise RolloutError("sandbox", str(error)) from error

    async def make_trajectory(
        self, task: Task, turns: Sequence[Turn], runs: Sequence[tuple[str, ToolResult]], answer: str, end: End
    ) -> Trajectory:
        """Return the trajectory. Its reward is +1 if `answer` is right, else -1; `official` is the same as 1 or 0."""
        grade = await self.grader.grade(task.question, answer, task.answers)
        statuses = Counter(result.status for _, result in runs)
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(turns),
            status="completed" if end == "answered" else "truncated",
            reward=1.0 if grade.correct else -1.0,
            metrics={
                "official": float(grade.correct),
                "turns": len(turns),
                f"{CALLS}interpreter": len(runs),
                FAILED_CALLS: len(runs) - statuses["ok"],
                "answer_boxed": float("\\boxed" in answer),
                "verify_failed": float(grade.by in ("timeout", "error")),
                f"end_{end}": 1.0,
                **self.format.count_notes(turns),
            },
            log={
                "answer": answer,
                "graded_by": grade.by,
                "end": end,
                "programs": [{"program": code, "status": run.status, "output": run.text} for code, run in runs],
            },
        )

    async def close(self) -> None:
        await self.interpreter.close()
        await self.grader.close()


SPEC = MethodSpec("retool", ReToolRecipe, PRESETS, ReTool, keeps_messages=True)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
