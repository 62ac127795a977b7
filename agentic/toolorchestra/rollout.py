"""ToolOrchestra: a small orchestrator answers by calling tools and experts, as well and as cheaply as its user asks.

Paper: "ToolOrchestra: Elevating Intelligence via Efficient Model and Tool Orchestration", arXiv 2511.21689.
Ports studied: the released trainer (verl) and what slime-agentic's README states.

Two kinds of tasks, by `metadata.category`: `qa`, a question for the tools search, enhance_reasoning, call_expert and
answer (questions.py); `func_call`, a conversation with a simulated user in a world with tools (dialogue.py).

Departures from both, on purpose:
1. The reward is the paper's (eq. 1-3). The released code has the sign of cost and latency reversed and ignores tools
   that a rollout never called.
2. Token ids from end to end; nothing that a user, a tool or an expert wrote is read as a special token.
3. Each way to write a malformed call has a name, is shown to the orchestrator and counted.
4. Retries, time and concurrency are bounded for each expert; the released client retries for ever. An unsolved rollout
   whose search, judge or every expert was down says nothing about the orchestrator: it fails, and is not trained.
5. Latency holds the orchestrator's own time; the released code counts tools alone.
6. What an environment grades is the agent's messages and calls alone, whoever chose them.

Run:  bash agentic/toolorchestra/run.sh                       # tiny: two CPU cores, minutes
      bash agentic/toolorchestra/run.sh --preset seed --dry-run
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from agentic.toolorchestra.config import PRESETS, ToolOrchestraRecipe, located
from agentic.toolorchestra.dialogue import Dialogue
from agentic.toolorchestra.environment import make_worlds
from agentic.toolorchestra.experts import Experts, Models, RolloutModels, cost_of
from agentic.toolorchestra.orchestrator import Orchestrator
from agentic.toolorchestra.questions import Question, QuestionTools
from agentic.toolorchestra.reward import preference_of, regrade
from core.config import RecipeError
from core.policy.base import Roles
from core.rewards.answer import AnswerGrader
from core.rollout.method import Method, MethodSpec, RolloutError
from core.slime.hooks import SlimeHooks
from core.text.conversation import Renderer
from core.tools.base import ToolError
from core.types import CALLS, Sampling, Task, Trajectory


class ToolOrchestra(Method):
    """The method. Roles: `policy` is the orchestrator; experts are roles or services, as the recipe says."""

    def __init__(self, recipe: ToolOrchestraRecipe, tokenizer: Any):
        self.recipe, self.config = recipe, located(recipe.toolorchestra)
        self.renderer = Renderer(tokenizer, {"enable_thinking": self.config.thinking})
        self.models = Models(self.config, tokenizer)
        self.needs = self.models.needs
        try:
            self.tools = QuestionTools(self.config)
        except ToolError as error:
            raise RecipeError(f"toolorchestra.search or toolorchestra.coder: {error}") from error
        self.worlds = make_worlds(self.config.environment)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """One task to its answer or its last turn; the reward is whether it was solved (for the rest see `regrade`)."""
        preference_of(self.config, task)  # one that cannot be used fails here, by name, and not in `regrade`
        models = self.models.of(roles, sampling.seed)
        experts = Experts(models, task)
        orchestrator = Orchestrator(self.config, self.renderer, roles["policy"], sampling)
        match task.metadata.get("category", "qa"):
            case "qa":
                return await self.question(task, models, experts, orchestrator)
            case "func_call":
                return await self.dialogue(task, models, experts, orchestrator)
            case other:
                raise RolloutError("bad_task", f"task {task.task_id}: category {other!r} is neither qa nor func_call")

    async def question(
        self, task: Task, models: RolloutModels, experts: Experts, orchestrator: Orchestrator
    ) -> Trajectory:
        if not self.config.tools:
            raise RolloutError("bad_task", f"task {task.task_id} is a question, and toolorchestra.tools is empty")
        asked = Question(self.config, self.renderer, self.tools, experts, task)
        await asked.run(orchestrator)
        grader = self.grader(models)
        correct, by = await grader.grade(task.question, asked.answer or "", task.answers)
        if by == "no_reply":
            raise RolloutError("judge_failed", f"task {task.task_id}: the judge gave no reply")
        if not correct and asked.failures["search_error"] + asked.failures["search_timeout"]:
            raise RolloutError("search_failed", f"task {task.task_id}: the search service gave no reply")
        asked.failures += Counter(judge_unreadable=int(by == "no_verdict"))
        answered = asked.answer is not None and by not in ("no_answer", "too_long")
        log = {"answer": asked.answer, "graded_by": by, "lines": asked.work.lines}
        return self.scored(task, experts, orchestrator, asked, correct=correct, answered=answered, log=log)

    async def dialogue(
        self, task: Task, models: RolloutModels, experts: Experts, orchestrator: Orchestrator
    ) -> Trajectory:
        if self.worlds is None:
            raise RolloutError("bad_task", f"task {task.task_id} is a func_call; set toolorchestra.environment")
        world = self.worlds.open(task, models.ask)
        talk = Dialogue(self.config, self.renderer, experts, task)
        try:
            await talk.run(orchestrator, world)
        finally:
            await world.close()
        log = {"score": talk.score, "lines": [asdict(line) for line in talk.lines]}
        solved = (talk.score or 0.0) > 0
        return self.scored(task, experts, orchestrator, talk, correct=solved, answered=talk.done, log=log)

    def scored(
        self,
        task: Task,
        experts: Experts,
        orchestrator: Orchestrator,
        work: Question | Dialogue,
        *,
        correct: bool,
        answered: bool,
        log: dict[str, Any],
    ) -> Trajectory:
        """The trajectory with its features as metrics: calls of each expert (0 too), cost and latency.

        Raises:
            RolloutError: `experts_failed`: unsolved, and no expert replied.
        """
        if not correct and experts.all_down:
            raise RolloutError("experts_failed", f"task {task.task_id}: no expert replied: {dict(experts.failures)}")
        turns = tuple(orchestrator.turns)
        if not answered and self.config.mask_unanswered:
            turns = tuple(replace(turn, trained=False) for turn in turns)
        clock = self.config.latency == "measured"
        own_cost = cost_of(self.config.orchestrator_price, *orchestrator.tokens)
        tools = (tool for tool, aliases in self.config.tools.items() if not aliases)
        names = dict.fromkeys([*experts.of(self.config.aliases), *tools])
        measured = orchestrator.seconds + work.seconds
        return Trajectory(
            task_id=task.task_id,
            turns=turns,
            status="completed" if answered else "truncated",
            reward=float(correct),
            metrics={
                "turns": len(turns),
                "correct": float(correct),
                "answered": float(answered),
                "cost": own_cost + sum(used.cost for used in experts.ledger),
                "latency": sum(u.seconds if clock else u.told for u in experts.ledger) + (measured if clock else 0.0),
                "malformed": orchestrator.refused.total(),
                "drift": orchestrator.drift,
                "expert_failures": experts.failures.total(),
                **{f"{CALLS}{name}": work.used[name] for name in names},
                **{f"malformed_{kind}": count for kind, count in orchestrator.refused.items()},
                **work.failures,
            },
            log={**log, "calls": [asdict(used) for used in experts.ledger]},
        )

    def grader(self, models: RolloutModels) -> AnswerGrader:
        name = self.config.judge
        if name is None:
            return AnswerGrader()

        async def ask(prompt: str) -> str:
            return (await models.ask(name, [{"role": "user", "content": prompt}])).text

        return AnswerGrader(ask)

    async def close(self) -> None:
        await self.models.close()
        await self.tools.close()
        if self.worlds is not None:
            await self.worlds.close()


def build(recipe: ToolOrchestraRecipe, tokenizer: Any) -> ToolOrchestra:
    return ToolOrchestra(recipe, tokenizer)


SPEC = MethodSpec("toolorchestra", ToolOrchestraRecipe, PRESETS, build, regrade=regrade)

# slime imports these names by path.
hooks = SlimeHooks(SPEC)
generate = hooks.generate
reward_func = hooks.reward_func
convert = hooks.convert
post_process_rewards = hooks.post_process_rewards
dynamic_filter = hooks.dynamic_filter
rollout_log = hooks.rollout_log
eval_log = hooks.eval_log
