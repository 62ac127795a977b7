"""RLM: the document is a variable, the policy writes programs that look into it, and these may call the policy itself.

Paper: "Recursive Language Models", arXiv 2512.24601. Port studied: alexzhang13/rlm, its training/ for prime-rl too. As
there, the root reads the question, programs and the beginning of what they print, never the document; variables stay;
sub-calls have depth 1, so they read a prompt and answer it, without programs of their own.

A rollout is the root's conversation, one row, and its sub-calls, a row each. All get the rollout's advantage; in its
group it counts once. The reward is 1 for a right answer, else 0, as in MemAgent, so that both can be compared.

Departures from both, on purpose:
1. Sub-calls are trained. The paper's 8B model learns the root's turns by supervised training, and the released trainer
   trains the root's turns alone (`rlm.train_subcalls=false`).
2. Programs are isolated by the kernel, and their interpreter has its state by replay (programs.py). Both ports keep a
   process, which the released trainer runs on its host without isolation. So a program must do the same when run again.
3. What the root sampled is never encoded again. What a sub-call answered is text in a program.
4. The answer is FINAL(value) or a boxed reply without a program. The port sets a dictionary `answer` in a program,
   and goes on after a reply without one.
5. One program in a reply is run, the last one. The port runs all.
6. `question` is a variable too. In the paper it is a part of the prompt that is the variable; the port has it not.

Run:  bash agentic/rlm/run.sh                            # tiny: two CPU cores, minutes
      bash agentic/rlm/run.sh --preset paper --backend slime --dry-run
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from agentic.rlm.config import PRESETS, RLMRecipe
from agentic.rlm.programs import Notebook, ProgramResult, Programs
from agentic.rlm.prompts import INSTRUCTIONS, LAST, TOO_LONG
from core.config import RecipeError
from core.policy.base import Policy, Roles
from core.rewards.answer_grader import find_answer, is_accepted
from core.rewards.answers import strip_thoughts
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import Turns, begin_turns
from core.sandbox import SandboxUnavailable
from core.text.conversation import Renderer
from core.text.programs import PYTHON, find_last_fence
from core.text.tokenizer import Ids, Tokenizer
from core.types import CALLS, FAILED_CALLS, Sampling, Task, Trajectory, Turn

LANGUAGES = PYTHON | {"repl"}
"""Names the fences that hold a program."""

End = Literal["answered", "final", "cut_reply", "program_limit", "context_limit"]
"""Names how a rollout ends. All but the first two give the status `truncated`."""


class RLM(Method):
    """Runs the method. Its one role, `policy`, writes the turns `root` and `subcall`.

    Raises:
        RecipeError: nothing here can isolate a program.
    """

    def __init__(self, recipe: RLMRecipe, tokenizer: Tokenizer):
        self.config = recipe.rlm
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        try:
            self.programs = Programs(self.config)
        except SandboxUnavailable as error:
            raise RecipeError(f"rlm.backend: {error}") from error
        self.sandbox = self.programs.isolation

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Let the policy write programs until it answers or meets a limit, and reward the answer.

        Raises:
            RolloutError: no document, one that the sandbox cannot hold, too long a question, or no sandbox.
        """
        config, policy, answer = self.config, roles["policy"], ""
        end: End = "program_limit"
        ids = self.open_conversation(task)
        turns = begin_turns(sampling, self.tokenizer)
        notebook = Notebook(self.programs, task.context, task.question, config.max_subcalls, config.shown_characters)
        ran: list[tuple[str, ProgramResult]] = []
        for left in reversed(range(config.max_programs + 1)):  # one more reply than programs
            completion = await turns.ask(policy, "root", ids, min(config.max_tokens, config.context_tokens - len(ids)))
            ids += completion.token_ids
            reply = str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))
            program = find_program(reply)
            if completion.finish_reason == "length" or program is None:
                end = "cut_reply" if completion.finish_reason == "length" else "answered"
                answer = reply
                break
            if not left:
                break
            outcome = await self.run_program(notebook, program, policy, turns)
            ran.append((program, outcome))
            if outcome.final is not None:
                end, answer = "final", outcome.final
                break
            output = self.renderer.message("user", outcome.text, "" if left > 1 else LAST)
            ids += self.renderer.render_between(completion.token_ids, output)
            if len(ids) >= config.context_tokens:
                end = "context_limit"
                break
        return make_trajectory(task, turns.recorded, ran, answer, end)

    def open_conversation(self, task: Task) -> Ids:
        """Return the ids of the question.

        Raises:
            RolloutError: there is no document, or too long a one, or the question leaves no room for a reply.
        """
        config, characters = self.config, len(task.context)
        if not task.context.strip():
            raise RolloutError("no_context", f"task {task.task_id}: field `context` is empty; RLM needs a document")
        if characters > self.programs.largest_document:
            raise RolloutError(
                "overlong_document",
                f"task {task.task_id}: field `context` has {characters} characters, and the sandbox holds "
                f"{self.programs.largest_document}; raise rlm.sandbox.folder_mb and memory_mb",
            )
        instructions = INSTRUCTIONS.format(
            characters=characters,
            shown=config.shown_characters,
            tokens=config.subcall_context_tokens - config.max_subcall_tokens,
            subcalls=config.max_subcalls,
        )
        question = self.renderer.message("user", task.question, instructions if config.explain else "")
        ids = self.renderer.render([question])
        if len(ids) >= config.context_tokens:
            raise RolloutError(
                "overlong_question",
                f"task {task.task_id}: field `question` takes {len(ids)} tokens, which leaves no room in "
                f"rlm.context_tokens={config.context_tokens}",
            )
        return ids

    async def run_program(self, notebook: Notebook, program: str, policy: Policy, turns: Turns) -> ProgramResult:
        """Run a program, with the sub-calls that it makes.

        Raises:
            RolloutError: the isolation could not be set up, so nothing ran (kind `sandbox`).
        """

        async def ask(prompts: Sequence[str]) -> list[str]:
            """Answer the prompts at once; their turns are recorded in the order of the prompts."""
            branches = [turns.branch() for _ in prompts]
            for branch in branches:
                branch.recorded = []
            parts = map(self.ask_part, [policy] * len(prompts), branches, prompts)
            asked = list(map(asyncio.create_task, parts))
            try:
                return await asyncio.gather(*asked)
            finally:
                for one in asked:
                    one.cancel()  # where one fails, so does the rollout, and nobody waits for the others
                turns.recorded += [turn for branch in branches for turn in branch.recorded]

        try:
            return await notebook.run(program, ask)
        except SandboxUnavailable as error:
            raise RolloutError("sandbox", str(error)) from error

    async def ask_part(self, policy: Policy, turns: Turns, prompt: str) -> str:
        """Return the policy's answer to the prompt of a program, or why it is not asked."""
        config = self.config
        ids = self.renderer.render([self.renderer.message("user", prompt)])
        room = config.subcall_context_tokens - config.max_subcall_tokens
        if len(ids) > room:
            return TOO_LONG.format(tokens=len(ids), limit=room)
        completion = await turns.ask(policy, "subcall", ids, config.max_subcall_tokens, config.train_subcalls)
        return strip_thoughts(str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)))

    async def close(self) -> None:
        self.programs.close()


def find_program(reply: str) -> str | None:
    """Return the last program of a reply behind its thoughts; None if there is none, or a boxed answer follows it."""
    fence = find_last_fence(strip_thoughts(reply), LANGUAGES)
    return None if fence is None or "\\boxed" in fence.rest else fence.text


def make_trajectory(
    task: Task, turns: Sequence[Turn], ran: Sequence[tuple[str, ProgramResult]], answer: str, end: End
) -> Trajectory:
    """Return the trajectory, whose reward is 1 if `answer`, FINAL's value or a reply with a box, is right."""
    subcalls = sum(turn.role == "subcall" for turn in turns)
    return Trajectory(
        task_id=task.task_id,
        turns=tuple(turns),
        status="completed" if end in ("answered", "final") else "truncated",
        reward=float(is_accepted(answer if end == "final" else find_answer(answer), task.answers)),
        metrics={
            "turns": len(turns) - subcalls,
            f"{CALLS}interpreter": len(ran),
            f"{CALLS}subcall": subcalls,
            FAILED_CALLS: sum(outcome.failed for _, outcome in ran),
            "answered": float(end in ("answered", "final")),
            f"end_{end}": 1.0,
        },
        log={
            "answer": answer,
            "end": end,
            "programs": [{"program": program, "output": outcome.text} for program, outcome in ran],
        },
    )


SPEC = MethodSpec("rlm", RLMRecipe, PRESETS, RLM, needs_context=True)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
