"""AgentFlow: a planner chooses one tool at a time, an executor calls it, a verifier says when the memory suffices.

Paper: "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use", arXiv 2510.05592 (Flow-GRPO).
Ports studied: the official trainer (verl) and slime-agentic's (slime).

Departures from both, on purpose:
1. Token ids from end to end; special tokens that a model wrote, or that stand in a question or a result, are never read
   as such in a later prompt. slime-agentic pastes responses with their end tokens.
2. The memory is a value made anew for each question; the official trainer's lives on from question to question.
3. Each role gets the sampling that was asked for, frozen ones temperature 0; the official client replaces it.
4. Commands are parsed, not executed. A malformed step or an unknown tool is recorded as such, shown to the planner and
   counted; slime-agentic silently takes another tool.
5. The token budget holds before every call, also those of tools; the final answer has its own.
6. The planner reads the tools' limits and best practice, and a memory in words instead of a Python dictionary.

Run:  bash agentic/agentflow/run.sh                         # tiny: two CPU cores, minutes
      bash agentic/agentflow/run.sh --preset seed --engine slime --dry-run
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from agentic.agentflow.calls import BudgetSpent, Calls, Slots, Voice, Written
from agentic.agentflow.config import POLICY, PRESETS, AgentFlowRecipe, AgentFlowSection, make_toolbox
from agentic.agentflow.formats import FORMATS, ParseError
from agentic.agentflow.memory import Memory, Step, shorten
from agentic.agentflow.prompts import MESSAGE, MESSAGES
from core.policy.base import Roles
from core.rewards.grade import MathGrader
from core.rewards.math import boxed_reward
from core.rollout.method import Method, MethodSpec, RolloutError
from core.slime.hooks import SlimeHooks
from core.text.tokenizer import load_tokenizer
from core.tools.base import ToolContext
from core.tools.registry import Toolbox
from core.types import CALLS, Sampling, Task, Trajectory


class AgentFlow(Method):
    """The method. Roles: planner.plan, planner.next_step, planner.final, executor, verifier, and those of the tools."""

    def __init__(self, config: AgentFlowSection, toolbox: Toolbox, tokenizer: Any):
        self.config, self.toolbox, self.tokenizer = config, toolbox, tokenizer
        self.format, self.style = FORMATS[config.format], config.format
        self.voices = {
            role: Voice(
                role,
                section,
                load_tokenizer(section.tokenizer) if section.tokenizer else tokenizer,
                MESSAGES[config.format].get(role, MESSAGE),
            )
            for role, section in config.every_role()
        }
        engines = (section.engine for _, section in config.every_role())
        self.needs = tuple(dict.fromkeys(engine for engine in engines if engine != POLICY))
        # The judge is asked over the roles of the rollout that is being graded.
        self.roles: ContextVar[Roles] = ContextVar("roles")
        self.grader = MathGrader(self.judge if "judge" in self.voices else None)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Plan, then step after step until the verifier stops it or a budget ends, then the final answer."""
        calls = self.calls(roles, sampling)
        known: dict[str, str | Written] = {
            "question": task.question,
            "analysis": "",
            "tools": ", ".join(self.toolbox.names),
            "metadata": "\n".join(tool.describe() for tool in self.toolbox),
        }
        memory, ending, unclear_verdicts = Memory(), "max_steps", 0
        try:
            if "planner.plan" in self.voices:
                known["analysis"] = await calls.ask("planner.plan", known)
            while len(memory.steps) < self.config.max_steps:
                memory = memory.add(await self.step(calls, known, memory))
                if memory.steps[-1].status in ("malformed_step", "malformed_command", "tool_not_found"):
                    continue  # nothing happened that could be verified
                verdict = self.format.verdict(await self.said(calls, "verifier", known, memory))
                if isinstance(verdict, ParseError):
                    unclear_verdicts += 1
                elif verdict.stop:
                    ending = "verified"
                    break
        except BudgetSpent:
            ending = "budget"
        slots = {**known, "memory": memory.render(self.style)}
        answer = await calls.ask("planner.final", slots, budgeted=False)
        return await self.scored(task, roles, calls, memory, answer, ending, unclear_verdicts)

    async def step(self, calls: Calls, known: Slots, memory: Memory) -> Step:
        """The planner's choice, its command, and what came of it."""
        text = await self.said(calls, "planner.next_step", known, memory)
        chosen = self.format.next_step(text)
        if isinstance(chosen, ParseError):
            return Step("malformed_step", result=f"Malformed step, {chosen.message}. It was: {self.short(text)}")
        tool, sub_goal = self.toolbox.find(chosen.tool), self.short(chosen.sub_goal)
        if tool is None:
            result = f"There is no such tool; the tools are {', '.join(self.toolbox.names)}."
            return Step("tool_not_found", self.short(chosen.tool), sub_goal, result=result)
        details = {"tool": tool.name, "tool_metadata": tool.describe(), "sub_goal": sub_goal, "context": chosen.context}
        text = (await calls.ask("executor", {**known, **details})).text
        command = self.format.command(text)
        if isinstance(command, ParseError):
            reason = f"Malformed command, {command.message}."
            return Step("malformed_command", tool.name, sub_goal, self.short(text), reason)

        async def ask(role: str, message: str) -> str:
            return (await calls.ask(role, {"message": message})).text

        outcome = await self.toolbox.call(tool, command.arguments, ToolContext(ask))
        return Step(outcome.status, tool.name, sub_goal, self.short(command.text), self.short(outcome.text))

    async def scored(
        self, task: Task, roles: Roles, calls: Calls, memory: Memory, answer: Written, ending: str, unclear: int
    ) -> Trajectory:
        """The trajectory with the reward of its final answer."""
        reward, by = await self.reward(task, roles, answer.text)
        statuses = Counter(step.status for step in memory.steps)
        used = Counter(step.tool for step in memory.steps if step.status not in ("malformed_command", "tool_not_found"))
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(calls.turns),
            status="truncated" if answer.cut else "completed",
            reward=reward,
            metrics={
                "turns": len(calls.turns),
                "steps": len(memory.steps),
                "parse_errors": statuses["malformed_step"],
                "command_errors": statuses["malformed_command"],
                "verdict_errors": unclear,
                "tool_errors": sum(statuses[s] for s in ("tool_not_found", "bad_arguments", "error", "timeout")),
                **{f"{CALLS}{name}": used[name] for name in self.toolbox.names},
                "verified": float(ending == "verified"),
                "budget_spent": float(ending == "budget"),
                "answer_boxed": float("\\boxed" in answer.text),
                **self.graded(by),
            },
            log={"answer": answer.text, "graded_by": by, "ending": ending, "steps": [asdict(s) for s in memory.steps]},
        )

    async def reward(self, task: Task, roles: Roles, answer: str) -> tuple[float, str]:
        """1 for a right answer, else 0; and the rule that decided."""
        if self.config.reward == "boxed":
            return boxed_reward(answer, task.answers), "boxed"
        self.roles.set(roles)
        grade = await self.grader.grade(task.question, answer, task.answers)
        if grade.by == "no_reply":
            raise RolloutError("judge_failed", f"task {task.task_id}: the judge gave no reply")
        return float(grade.correct), grade.by

    def graded(self, by: str) -> dict[str, float]:
        """What went on in grading, where there is more to it than a comparison."""
        if self.config.reward == "boxed":
            return {}
        judged = {"judge_overruled": by == "judge", "judge_unreadable": by == "no_verdict"}
        counted = {"verify_failed": by in ("timeout", "error"), **(judged if "judge" in self.voices else {})}
        return {name: float(value) for name, value in counted.items()}

    async def judge(self, prompt: str) -> str:
        calls = self.calls(self.roles.get(), Sampling(temperature=0.0))
        return (await calls.ask("judge", {"message": prompt}, budgeted=False)).text

    def calls(self, roles: Roles, sampling: Sampling) -> Calls:
        tokens, seconds = self.config.max_total_tokens, self.config.call_timeout_s
        return Calls(self.voices, roles, sampling, max_total_tokens=tokens, timeout_s=seconds)

    async def said(self, calls: Calls, role: str, known: Slots, memory: Memory) -> str:
        return (await calls.ask(role, {**known, "memory": memory.render(self.style)})).text

    def short(self, text: str) -> str:
        return shorten(self.tokenizer, text, self.config.max_result_tokens)

    async def close(self) -> None:
        await self.toolbox.close()
        await self.grader.close()


def build(recipe: AgentFlowRecipe, tokenizer: Any) -> AgentFlow:
    return AgentFlow(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)


SPEC = MethodSpec("agentflow", AgentFlowRecipe, PRESETS, build)

# slime imports these names by path.
hooks = SlimeHooks(SPEC)
generate = hooks.generate
reward_func = hooks.reward_func
convert = hooks.convert
post_process_rewards = hooks.post_process_rewards
dynamic_filter = hooks.dynamic_filter
rollout_log = hooks.rollout_log
eval_log = hooks.eval_log
