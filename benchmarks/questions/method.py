"""Runs a question of FRAMES or HLE as ToolOrchestra's released evaluation does, with the prompts of prompts.py.

Up to 50 turns: the orchestrator calls one tool with one expert, until an expert has answered. What differs from the
released code is listed by evaluate.py.
"""

from __future__ import annotations

from collections import Counter

from agentic.toolorchestra.config import ToolOrchestraRecipe, resolve_addresses
from agentic.toolorchestra.experts import ExpertFailure, Experts, ModelPool, RolloutModels, call_cost
from agentic.toolorchestra.orchestrator import Orchestrator
from agentic.toolorchestra.qa import QaTools
from benchmarks.questions.prompts import (
    QUERY_CHARACTERS,
    SYSTEM,
    Data,
    Tool,
    agrees_at_once,
    expert_context,
    expert_messages,
    find_family,
    judge_message,
    orchestrator_message,
    read_answer,
    read_program,
    read_query,
    read_released,
    read_verdict,
    shown_tools,
)
from core.config import RecipeError
from core.policy.base import PolicyError, Roles
from core.rollout.method import Method, RolloutError
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.text.tool_calls import CallError, parse_calls
from core.types import CALLS, Sampling, Task, Trajectory

COUNTS = ("malformed", "expert_failures", "tool_failures", "judge_unreadable")
"""Names what a rollout counts and a result shows. An answer whose verdict cannot be read is wrong."""


class ReleasedQuestions(Method):
    """Answers the questions of `data` with the recipe's tools, experts and judge."""

    def __init__(self, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer, data: Data):
        self.released = read_released()[data]
        self.config = resolve_addresses(recipe.toolorchestra)
        if self.config.judge is None:
            raise RecipeError("toolorchestra.judge is missing; answers that differ in letters need one")
        search = {**self.config.search, "topk": self.released.passages}
        self.config = self.config.model_copy(update={"search": search})
        self.renderer = Renderer(tokenizer, {"enable_thinking": self.config.thinking})
        self.models = ModelPool(self.config, tokenizer)
        self.needs = self.models.needs
        self.tools = QaTools(self.config)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        models = self.models.for_rollout(roles, sampling.seed)
        experts = Experts(models, task)
        orchestrator = Orchestrator(self.config, self.renderer, roles["policy"], sampling)
        run = _Run(self, task, experts)
        for _ in range(self.config.max_turns):
            tools = shown_tools(self.released, bool(run.documents))
            user = orchestrator_message(
                self.released, self.renderer.tokenizer, task.question, run.documents, run.programs
            )
            messages = [self.renderer.message("system", SYSTEM), self.renderer.message("user", user)]
            text = await orchestrator.write(messages, tools)
            if text is None:
                run.counts["too_long"] += 1
                break
            call = self.choose(text)
            if call is None:
                run.counts["malformed"] += 1
                continue
            await run.execute(*call)
            if run.answer is not None:
                break
        correct = await self.grade(models, task, run.answer or "")
        run.counts["judge_unreadable"] += correct is None
        if not correct and (run.counts["search_failures"] or experts.all_down):
            what = "the search service" if run.counts["search_failures"] else "every expert"
            raise RolloutError("service_failed", f"task {task.task_id}: {what} gave no reply")
        own = call_cost(self.config.orchestrator_price, *orchestrator.count_tokens())
        calls = {f"{CALLS}{alias}": run.used[alias] for alias in self.config.aliases}
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(orchestrator.turns),
            status="truncated" if run.answer is None else "completed",
            reward=float(bool(correct)),
            metrics={
                "turns": len(orchestrator.turns),
                "cost": own + sum(call.cost for call in experts.ledger),
                **dict.fromkeys(COUNTS, 0),
                **run.counts,
                **calls,
            },
            log={"answer": run.answer},
        )

    def choose(self, text: str) -> tuple[Tool, str] | None:
        """Return the first call that can be executed, as (tool, expert); None without one."""
        calls = parse_calls(text, several=True)
        for call in () if isinstance(calls, CallError) else calls:
            alias = call.arguments.get("model")
            if isinstance(alias, str) and alias in self.config.tools.get(call.name, ()):  # type: ignore[call-overload]
                return call.name, alias  # type: ignore[return-value]
        return None

    async def grade(self, models: RolloutModels, task: Task, answer: str) -> bool | None:
        """Say whether the answer is right: as written, or by the judge's word. None: that cannot be read.

        Raises:
            PolicyError: the judge gives no reply.
        """
        if len(task.answers) != 1:
            raise RolloutError("bad_task", f"task {task.task_id} has {len(task.answers)} answers; one is compared")
        at_once = agrees_at_once(answer, task.answers[0])
        if at_once is not None:
            return at_once
        message = judge_message(task.question, answer, task.answers[0])
        reply = await models.ask(str(self.config.judge), [{"role": "user", "content": message}])
        if not reply.text.strip():
            raise PolicyError("bad_reply", "the judge met its limit of tokens before it wrote anything")
        return read_verdict(reply.text)

    async def close(self) -> None:
        await self.models.close()
        await self.tools.close()


class _Run:
    """Holds what one question has gathered. `answer` is None until an expert was asked for it."""

    def __init__(self, method: ReleasedQuestions, task: Task, experts: Experts):
        self.documents: list[str] = []
        self.programs: list[tuple[str, str]] = []
        self.answer: str | None = None
        self.used: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._method, self._task, self._experts = method, task, experts

    async def execute(self, tool: Tool, alias: str) -> None:
        """Ask the expert, and do with its reply what the tool is for."""
        method, problem = self._method, self._task.question
        family = find_family(method.config.model_mapping[alias])
        tokenizer = method.renderer.tokenizer
        context = expert_context(method.released, tokenizer, tool, family, problem, self.documents, self.programs)
        self.used[alias] += 1
        reply = await self._experts.ask(alias, expert_messages(method.released, tool, family, problem, context))
        text = None if isinstance(reply, ExpertFailure) else reply.text
        self.counts["expert_failures"] += text is None
        match tool:
            case "answer":
                self.answer = "" if text is None else read_answer(family, text)
            case "search":
                asks_itself = method.released.empty_query_is_question and family == "gpt" and not text
                await self._search(problem if text is None or asks_itself else read_query(text))
            case "enhance_reasoning":
                if text and method.released.runs_programs and (program := read_program(text)):
                    await self._run_program(program)

    async def _search(self, query: str) -> None:
        if len(query) < self._method.released.shortest_query:
            return
        result = await self._method.tools.run("search", query[:QUERY_CHARACTERS])
        if result.status != "ok":
            self.counts["tool_failures"] += 1
            self.counts["search_failures"] += result.status in ("error", "timeout")
            return
        found = dict.fromkeys(result.parts[::-1])
        self.documents += [document for document in found if document not in self.documents]

    async def _run_program(self, program: str) -> None:
        result = await self._method.tools.run("enhance_reasoning", program)
        if result.status != "ok":
            self.counts["tool_failures"] += 1
        elif result.text.strip():
            self.programs.append((program, result.text))
