"""AgentFlow: a planner chooses one tool at a time, an executor calls it, a verifier says when the memory suffices.

Paper: "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use", arXiv 2510.05592 (Flow-GRPO).
Ports studied: the official trainer (verl) and slime-agentic's (slime).

Departures from both, on purpose:
1. What was sampled is trained, as ids. A special token that a model wrote, or that stands in a question or a result,
   never becomes one in a later prompt. slime-agentic pastes responses with their end tokens.
2. Each question begins with an empty memory. The official trainer's memory lives on from question to question.
3. Each role gets the sampling that was asked for, and frozen roles temperature 0. The official client replaces it.
4. Commands are parsed and never run. A malformed step or an unknown tool is recorded, shown to the planner and counted.
   slime-agentic silently takes another tool.
5. The token budget is checked before every call, also before those of tools. The final answer has a budget of its own.
6. The planner reads the limits and best practice of each tool, and a memory in words instead of a Python dictionary.
   With `format: released` it reads what the released code shows it.

Algorithms that credit turns (turn_grpo, gigpo, ppo) read a reward of each next step: 1 if its tool's result holds an
accepted answer that neither the question, nor an earlier result, nor the command itself holds, else 0. The state before
a turn is what the tools gave so far.

Run:  bash agentic/agentflow/run.sh                         # tiny: two CPU cores, minutes
      bash agentic/agentflow/run.sh --preset seed --backend slime --dry-run
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from agentic.agentflow.config import PRESETS, AgentFlowRecipe, AgentFlowSection, make_toolbox
from agentic.agentflow.formats import FORMATS, ParseError
from agentic.agentflow.memory import Memory, Step, shorten
from agentic.agentflow.prompts import (
    MESSAGE,
    RELEASED_SYSTEM,
    describe_released_task,
    read_messages,
    read_released_answer,
    read_tools,
)
from agentic.agentflow.role_client import BudgetSpent, RoleClient, RoleOutput, RolePrompter, Slots
from core.policy.base import Roles
from core.rewards.answer_grader import reward_finding
from core.rewards.answers import strip_thoughts
from core.rewards.judge import ANSWER_LIMIT, Judge
from core.rewards.math_grader import MathGrader
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.text.tokenizer import Tokenizer, load_tokenizer
from core.tools.base import Toolbox, ToolContext
from core.types import CALLS, FAILED_CALLS, POLICY, Sampling, Task, Trajectory


class AgentFlow(Method):
    """Runs the method. Roles: planner.plan, planner.next_step, planner.final, executor, verifier, those of tools."""

    def __init__(self, config: AgentFlowSection, toolbox: Toolbox, tokenizer: Tokenizer):
        self.config = config
        self.toolbox = toolbox
        self.sandbox = toolbox.isolation
        self.tokenizer = tokenizer
        self.format, messages = FORMATS[config.format], read_messages(config.format)
        self.prompters = {
            role: RolePrompter(
                role,
                section,
                load_tokenizer(section.tokenizer) if section.tokenizer else tokenizer,
                messages.get(role, MESSAGE),
                RELEASED_SYSTEM if config.format == "released" and role in messages else "",
            )
            for role, section in config.every_role()
        }
        roles = (section.role for _, section in config.every_role())
        self.needs = tuple(dict.fromkeys(role for role in roles if role != POLICY))
        self.grader = MathGrader()
        self.answer_judge = Judge()
        self.judges_mathematics = config.reward == "math" and "judge" in self.prompters

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Plan, take steps until the verifier stops or a budget ends, then write and reward the final answer."""
        client = self.new_client(roles, sampling)
        known: dict[str, str | RoleOutput] = {"analysis": "", **self.describe_task(task.question)}
        memory, ending, unclear_verdicts = Memory(), "max_steps", 0
        try:
            if "planner.plan" in self.prompters:
                known["analysis"] = await client.ask("planner.plan", known)
            while len(memory.steps) < self.config.max_steps:
                step = await self.take_step(client, known, memory)
                found, told = step.result if step.status == "ok" else "", [task.question, *memory.results, step.command]
                client.credit("planner.next_step", reward=reward_finding(found, "\n".join(told), task.answers))
                memory = memory.add(step)
                if memory.steps[-1].status in ("malformed_step", "malformed_command", "tool_not_found"):
                    continue  # no tool ran, so there is nothing to verify
                said = await self.ask_with_memory(client, "verifier", known, memory)
                verdict = self.format.parse_verdict(strip_thoughts(said))
                if isinstance(verdict, ParseError):
                    unclear_verdicts += 1
                elif verdict:
                    ending = "verified"
                    break
        except BudgetSpent:
            ending = "budget"
        slots = {**known, "memory": memory.render(self.config.format)}
        answer = await client.ask("planner.final", slots, budgeted=False)
        client.credit("planner.final", state=memory.results)
        return await self.make_trajectory(task, client, memory, answer, ending, unclear_verdicts)

    def describe_task(self, question: str) -> dict[str, str]:
        """Return the slots that tell the roles of the question and of all tools."""
        if self.config.format == "released":
            return describe_released_task(question, self.toolbox.names)
        metadata = "\n".join(tool.describe() for tool in self.toolbox)
        return {"question": question, "tools": ", ".join(self.toolbox.names), "metadata": metadata}

    async def take_step(self, client: RoleClient, known: Slots, memory: Memory) -> Step:
        """Ask the planner for a tool and the executor for its command; run it and return the step with its result."""
        text = await self.ask_with_memory(client, "planner.next_step", known, memory)
        choice = self.format.parse_next_step(strip_thoughts(text))
        if isinstance(choice, ParseError):
            return Step("malformed_step", result=f"Malformed step, {choice.message}. It was: {self.shorten(text)}")
        tool, sub_goal = self.toolbox.find(choice.tool), self.shorten(choice.sub_goal)
        if tool is None:
            result = f"There is no such tool; the tools are {', '.join(self.toolbox.names)}."
            return Step("tool_not_found", self.shorten(choice.tool), sub_goal, result=result)
        details = {
            "tool": tool.name,
            "tool_metadata": str(read_tools()[tool.name]) if self.config.format == "released" else tool.describe(),
            "sub_goal": sub_goal,
            "context": choice.context,
        }
        text = (await client.ask("executor", {**known, **details})).text
        command = self.format.parse_command(strip_thoughts(text))
        if isinstance(command, ParseError):
            reason = f"Malformed command, {command.message}."
            return Step("malformed_command", tool.name, sub_goal, self.shorten(text), reason)

        async def ask(role: str, message: str) -> str:
            return strip_thoughts((await client.ask(role, {"message": message})).text)

        outcome = await self.toolbox.call(tool, command.arguments, ToolContext(ask))
        return Step(outcome.status, tool.name, sub_goal, self.shorten(command.text), self.shorten(outcome.text))

    async def make_trajectory(
        self, task: Task, client: RoleClient, memory: Memory, answer: RoleOutput, ending: str, unclear_verdicts: int
    ) -> Trajectory:
        """Grade the final answer, and return the trajectory with its reward and metrics."""
        reward, rule = await self.grade(task, client.roles, answer.text)
        steps = [asdict(step) for step in memory.steps]
        statuses = Counter(step.status for step in memory.steps)
        unserved = [self.toolbox.find(step.tool) for step in memory.steps if step.status in ("error", "timeout")]
        if not reward and any(tool is not None and tool.needs_service for tool in unserved):
            raise RolloutError("search_failed", f"task {task.task_id}: the search service gave no reply")
        used = Counter(step.tool for step in memory.steps if step.status not in ("malformed_command", "tool_not_found"))
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(client.turns),
            status="truncated" if answer.cut else "completed",
            reward=reward,
            metrics={
                "turns": len(client.turns),
                "steps": len(memory.steps),
                "parse_errors": statuses["malformed_step"],
                "command_errors": statuses["malformed_command"],
                "verdict_errors": unclear_verdicts,
                "tool_errors": sum(statuses[s] for s in ("tool_not_found", "bad_arguments", "error", "timeout")),
                **{f"{CALLS}{name}": used[name] for name in self.toolbox.names},
                FAILED_CALLS: sum(statuses[s] for s in ("bad_arguments", "error", "timeout")),
                "verified": float(ending == "verified"),
                "budget_spent": float(ending == "budget"),
                "answer_boxed": float("\\boxed" in answer.text),
                **self.grader_metrics(rule),
            },
            log={"answer": answer.text, "graded_by": rule, "ending": ending, "steps": steps},
        )

    async def grade(self, task: Task, roles: Roles, answer: str) -> tuple[float, str]:
        """Return the reward, 1 for a right answer and else 0, and the name of the rule that decided."""

        async def judge(prompt: str) -> str:
            client = self.new_client(roles, Sampling(temperature=0.0))
            return (await client.ask("judge", {"message": prompt}, budgeted=False)).text

        if self.config.reward == "judge":
            end = strip_thoughts(answer)
            end = (read_released_answer(end) if self.config.format == "released" else end)[-ANSWER_LIMIT:]
            if not end.strip():
                return 0.0, "no_answer"
            verdict = await self.answer_judge.compare(judge, task.question, end, task.answers)
            correct, rule = verdict == "same", str(verdict)
        else:
            asked = judge if self.judges_mathematics else None
            grade = await self.grader.grade(task.question, answer, task.answers, asked)
            correct, rule = grade.correct, grade.by
        if rule == "no_reply":
            raise RolloutError("judge_failed", f"task {task.task_id}: the judge gave no reply")
        return float(correct), rule

    def grader_metrics(self, rule: str) -> dict[str, float]:
        """Return what went wrong in grading."""
        if self.config.reward == "judge":
            return {"judge_unreadable": float(rule == "no_verdict")}
        judge = {"judge_overruled": rule == "judge", "judge_unreadable": rule == "no_verdict"}
        flags = {"verify_failed": rule in ("timeout", "error"), **(judge if self.judges_mathematics else {})}
        return {name: float(flag) for name, flag in flags.items()}

    def new_client(self, roles: Roles, sampling: Sampling) -> RoleClient:
        tokens, seconds = self.config.max_total_tokens, self.config.call_timeout_s
        return RoleClient(self.prompters, roles, sampling, max_total_tokens=tokens, timeout_s=seconds)

    async def ask_with_memory(self, client: RoleClient, role: str, known: Slots, memory: Memory) -> str:
        """Return what `role` writes when it reads the memory."""
        output = await client.ask(role, {**known, "memory": memory.render(self.config.format)})
        client.credit(role, state=memory.results)
        return output.text

    def shorten(self, text: str) -> str:
        return shorten(self.tokenizer, text, self.config.max_result_tokens)

    async def close(self) -> None:
        await self.toolbox.close()
        await self.grader.close()


def build(recipe: AgentFlowRecipe, tokenizer: Tokenizer) -> AgentFlow:
    return AgentFlow(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)


def needs_short_answers(recipe: AgentFlowRecipe) -> bool:
    """Return whether no judge compares answers."""
    return recipe.agentflow.reward == "boxed" or "judge" not in recipe.agentflow.roles


SPEC = MethodSpec("agentflow", AgentFlowRecipe, PRESETS, build, short_answers=needs_short_answers)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
