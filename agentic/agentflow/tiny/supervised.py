"""Draws the turns of the baseline `supervised`: whole correct trajectories of the training tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from agentic.agentflow.config import AgentFlowRecipe
from agentic.agentflow.memory import Memory, Step
from agentic.agentflow.rollout import build
from agentic.agentflow.tiny.demonstrations import ANSWER, PlannerDemonstration
from agentic.agentflow.tiny.questions import ToyQuestion
from agentic.agentflow.tiny.tasks import solve
from agentic.agentflow.tiny.warm_start import encode
from core.config import SupervisedSection
from core.data.tasks import read_tasks
from core.text.tokenizer import Tokenizer
from core.train import Example, batch_by_length


def batches(config: SupervisedSection, recipe: AgentFlowRecipe, tokenizer: Tokenizer) -> Iterator[Sequence[Example]]:
    """Yield batches of turns without end."""
    method, rng = build(recipe, tokenizer), Random(config.seed)
    tasks = read_tasks(recipe.data.train, require_context=False)
    turns = [encode(turn, method, tokenizer) for task in tasks for turn in demonstrate(ToyQuestion.read(task.question))]
    while True:
        yield from batch_by_length(rng, turns, config.batch_size)


def demonstrate(question: ToyQuestion) -> Iterator[PlannerDemonstration]:
    """Yield the turns of the right rollout, the answer last."""
    memory, right, results = Memory(), solve(question), dict[str, str]()
    while step := question.next_step(results):
        tool, sub_goal = step
        text = memory.render("compact")
        yield PlannerDemonstration("planner.next_step", question.text, text, f" {tool} : {sub_goal}")
        results[sub_goal] = right[sub_goal]
        memory = memory.add(Step("ok", tool, sub_goal, result=right[sub_goal]))
    answer = ANSWER.format(answer=list(right.values())[-1])
    yield PlannerDemonstration("planner.final", question.text, memory.render("compact"), answer)
