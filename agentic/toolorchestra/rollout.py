"""ToolOrchestra: a small orchestrator answers by calling tools and experts, as well and as cheaply as its user asks.

Paper: "ToolOrchestra: Elevating Intelligence via Efficient Model and Tool Orchestration", arXiv 2511.21689.
Ports studied: the released trainer (verl) and what slime-agentic's README states.

There are three kinds of tasks (`metadata.category`). `qa` is a question for the tools search, enhance_reasoning,
call_expert and answer; qa.py runs it. `func_call` is a conversation with a simulated user and tools; func_call.py runs
it. `route` is a question for one of two models, whose outcomes are known; routing.py runs it. reward.py compares the
rollouts of a group.

Departures from both, on purpose:
1. The reward is the paper's (eq. 1-3). The released code has the sign of cost and latency reversed and ignores tools
   that a rollout never called.
2. What was sampled is trained, as ids. Nothing that a user, a tool or an expert wrote becomes a special token.
3. Each way to write a malformed call has a name. It is shown to the orchestrator and counted.
4. Retries, time and concurrency are bounded for each expert. The released client retries for ever. If search, judge or
   every expert was down, an unsolved rollout says nothing about the orchestrator: it fails and is not trained.
5. Latency includes the orchestrator's own time. The released code counts tools alone.
6. An environment grades the agent's messages and calls alone, whoever chose them.

Run:  bash agentic/toolorchestra/run.sh                       # tiny: two CPU cores, minutes
      bash agentic/toolorchestra/run.sh --preset seed --dry-run
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from agentic.toolorchestra.config import PRESETS, ToolOrchestraRecipe, resolve_addresses
from agentic.toolorchestra.environment import Environment, make_environment_factory
from agentic.toolorchestra.experts import Experts, ModelPool, RolloutModels, call_cost
from agentic.toolorchestra.formats import make_format
from agentic.toolorchestra.func_call import FuncCallRollout
from agentic.toolorchestra.orchestrator import Orchestrator
from agentic.toolorchestra.qa import QaRollout, QaTools
from agentic.toolorchestra.reward import make_regrade, preference_weights
from agentic.toolorchestra.routing import run_route
from core.config import RecipeError
from core.policy.base import Roles
from core.rewards.answer_grader import AnswerGrader
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.tools.base import ToolError
from core.types import CALLS, FAILED_CALLS, Sampling, Task, Trajectory


class ToolOrchestra(Method):
    """Runs the method. The role `policy` is the orchestrator; experts are roles or services, as the recipe says."""

    def __init__(self, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer):
        self.recipe, self.config = recipe, resolve_addresses(recipe.toolorchestra)
        self.renderer = Renderer(tokenizer, {"enable_thinking": self.config.thinking})
        make_format(self.config.format, tokenizer, Counter())  # refuses a template without calls now
        self.models = ModelPool(self.config, tokenizer)
        self.needs = self.models.needs
        try:
            self.tools = QaTools(self.config)
        except ToolError as error:
            raise RecipeError(f"toolorchestra.search or toolorchestra.coder: {error}") from error
        self.sandbox = self.tools.isolation
        self.environments = make_environment_factory(self.config.environment)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Run one task to its answer or its last turn. The reward is 1 if it was solved; `regrade` does the rest."""
        preference_weights(self.recipe, task)  # a record with bad weights fails here with a name, and not in `regrade`
        models = self.models.for_rollout(roles, sampling.seed)
        experts = Experts(models, task)
        orchestrator = Orchestrator(self.config, self.renderer, roles["policy"], sampling)
        match task.metadata.get("category", "qa"):
            case "qa":
                return await self.run_qa(task, models, experts, orchestrator)
            case "func_call":
                return await self.run_func_call(task, models, experts, orchestrator)
            case "route":
                return await run_route(self.config, self.renderer, task, orchestrator)
            case other:
                raise RolloutError("bad_task", f"task {task.task_id}: category {other!r} is not qa, func_call or route")

    async def run_qa(
        self, task: Task, models: RolloutModels, experts: Experts, orchestrator: Orchestrator
    ) -> Trajectory:
        if not self.config.tools:
            raise RolloutError("bad_task", f"task {task.task_id} is a question, and toolorchestra.tools is empty")
        qa = QaRollout(self.config, self.renderer, self.tools, experts, task)
        if task.metadata.get("model_mapping") and all(tool.name != "answer" for tool in qa.schemas):
            raise RolloutError("bad_task", f"task {task.task_id}: model_mapping has no expert of tools.answer")
        await qa.run(orchestrator)
        correct, rule = await self.make_grader(models).grade(task.question, qa.answer or "", task.answers)
        if rule == "no_reply":
            raise RolloutError("judge_failed", f"task {task.task_id}: the judge gave no reply")
        if not correct and qa.failures["search_error"] + qa.failures["search_timeout"]:
            raise RolloutError("search_failed", f"task {task.task_id}: the search service gave no reply")
        qa.failures += Counter(judge_unreadable=int(rule == "no_verdict"))
        answered = qa.answer is not None and rule not in ("no_answer", "too_long")
        log = {"answer": qa.answer, "graded_by": rule, "lines": qa.workspace.lines}
        return self.make_trajectory(task, experts, orchestrator, qa, correct=correct, answered=answered, log=log)

    async def run_func_call(
        self, task: Task, models: RolloutModels, experts: Experts, orchestrator: Orchestrator
    ) -> Trajectory:
        if self.environments is None:
            raise RolloutError("bad_task", f"task {task.task_id} is a func_call; set toolorchestra.environment")
        environment = self.environments.open(task, models.ask)
        call = FuncCallRollout(self.config, self.renderer, experts, task)
        try:
            await call.run(orchestrator, environment)
        finally:
            await environment.close()
        log, solved = self.write_log(call, environment), (call.score or 0.0) > 1 - 1e-6
        return self.make_trajectory(task, experts, orchestrator, call, correct=solved, answered=call.done, log=log)

    def write_log(self, call: FuncCallRollout, environment: Environment) -> dict[str, Any]:
        """Return what a reader should see of a conversation."""
        return {"score": call.score, "lines": [asdict(message) for message in call.dialogue]}

    def make_trajectory(
        self,
        task: Task,
        experts: Experts,
        orchestrator: Orchestrator,
        run: QaRollout | FuncCallRollout,
        *,
        correct: bool,
        answered: bool,
        log: dict[str, Any],
    ) -> Trajectory:
        """Return the trajectory with its features as metrics: the calls of each expert (also 0), cost and latency.

        Raises:
            RolloutError: the task is unsolved and no expert replied (`experts_failed`).
        """
        if not correct and experts.all_down:
            raise RolloutError("experts_failed", f"task {task.task_id}: no expert replied: {dict(experts.failures)}")
        turns = tuple(orchestrator.turns)
        if not answered and self.config.mask_unanswered:
            turns = tuple(replace(turn, trained=False) for turn in turns)
        own_cost = call_cost(self.config.orchestrator_price, *orchestrator.count_tokens())
        tools = (tool for tool, aliases in self.config.tools.items() if not aliases)
        names = dict.fromkeys([*experts.available(self.config.aliases), *tools])
        if self.config.latency == "measured":
            latency = sum(call.seconds for call in experts.ledger) + (orchestrator.seconds + run.seconds)
        else:
            latency = sum((call.declared_s for call in experts.ledger), 0.0)
        return Trajectory(
            task_id=task.task_id,
            turns=turns,
            status="completed" if answered else "truncated",
            reward=float(correct),
            metrics={
                "turns": len(turns),
                "correct": float(correct),
                "answered": float(answered),
                "cost": own_cost + sum(call.cost for call in experts.ledger),
                "latency": latency,
                "malformed": orchestrator.refused.total(),
                "drift": orchestrator.drift,
                "expert_failures": experts.failures.total(),
                FAILED_CALLS: experts.failures.total(),
                **{f"{CALLS}{name}": run.used[name] for name in names},
                **{f"malformed_{kind}": count for kind, count in orchestrator.refused.items()},
                **run.failures,
            },
            log={**log, "calls": [asdict(call) for call in experts.ledger]},
        )

    def make_grader(self, models: RolloutModels) -> AnswerGrader:
        name = self.config.judge
        if name is None:
            return AnswerGrader()

        async def ask(prompt: str) -> str:
            return (await models.ask(name, [{"role": "user", "content": prompt}])).text

        return AnswerGrader(ask)

    async def close(self) -> None:
        await self.models.close()
        await self.tools.close()
        if self.environments is not None:
            await self.environments.close()


LEFT_OUT = {"tokens_cut": "tokens at the beginning of the question; toolorchestra.budget.total is too small for it"}

SPEC = MethodSpec(
    "toolorchestra",
    ToolOrchestraRecipe,
    PRESETS,
    ToolOrchestra,
    short_answers=False,
    regrade=make_regrade,
    left_out=LEFT_OUT,
)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
