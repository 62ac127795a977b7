"""Scripts rollouts for the `tiny` preset's warm start. Their annotator writes good sub-goals and decides badly.

As often as `CarelessAnnotator` says, he names the wrong tool, skips a step (he uses a number at hand in place of a
result that is still missing), or names no tool. The policy learns the format, copying and looking up from him, and what
his mistakes lead to. RL teaches it which tool does what. All results are made up: no demonstration tells a fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agentic.agentflow.memory import Memory, Step
from agentic.agentflow.tiny.facts import ENTITIES, UNKNOWN
from agentic.agentflow.tiny.questions import CODER, GENERATOR, ToyQuestion, compute
from agentic.agentflow.tiny.scripted_roles import is_result
from agentic.agentflow.tiny.tasks import draw_number, draw_question, solve

ANSWER = "\\boxed{{ {answer}}}"


@dataclass(frozen=True, slots=True)
class CarelessAnnotator:
    """Says how often the annotator names the wrong tool, skips a step where a number is at hand, and names no tool."""

    wrong_tool: float = 0.3
    skip: float = 0.4
    malformed: float = 0.05


@dataclass(frozen=True, slots=True)
class PlannerDemonstration:
    """Holds one turn of `planner.next_step` or `planner.final` as text."""

    role: str
    question: str
    memory: str
    completion: str


def demonstrate(rng: Random, annotator: CarelessAnnotator, max_steps: int = 3) -> Iterator[PlannerDemonstration]:
    """Yield the turns of one rollout on a training question."""
    _, question = draw_question(rng, "train")
    memory, results = Memory(), dict[str, str]()
    if rng.random() < 0.02:  # with an empty memory he answers by himself, which is right where no look-up is needed
        answer = list(solve(question).values())[-1] if not (question.facts or question.item) else str(draw_number(rng))
        yield PlannerDemonstration("planner.final", question.text, "", ANSWER.format(answer=answer))
    while len(memory.steps) < max_steps and sum(is_result(step.result) for step in memory.steps) < question.needs:
        tool, sub_goal = choose_step(rng, annotator, question, results)
        malformed = rng.random() < annotator.malformed
        completion = f" {sub_goal}" if malformed else f" {tool} : {sub_goal}"
        yield PlannerDemonstration("planner.next_step", question.text, memory.render("compact"), completion)
        step = Step("malformed_step") if malformed else make_up_step(rng, tool, sub_goal)
        memory = memory.add(step)
        if is_result(step.result):
            results[sub_goal] = step.result
    if results:
        answer = ANSWER.format(answer=list(results.values())[-1])
        yield PlannerDemonstration("planner.final", question.text, memory.render("compact"), answer)


def choose_step(
    rng: Random, annotator: CarelessAnnotator, question: ToyQuestion, results: dict[str, str]
) -> tuple[str, str]:
    """Choose the annotator's tool and sub-goal, with his mistakes."""
    right = question.next_step(results)
    assert right is not None, "he is asked while a result is missing"
    at_hand = [*question.numbers, *(value for value in results.values() if value not in ENTITIES)]
    if at_hand and rng.random() < annotator.skip:
        right = question.next_step(results | {right[1]: rng.choice(at_hand)}) or right
    tool, sub_goal = right
    if rng.random() < annotator.wrong_tool:
        tool = GENERATOR if tool == CODER else CODER
    return tool, sub_goal


def make_up_step(rng: Random, tool: str, sub_goal: str) -> Step:
    """Return the step with a made-up result of the right form, or with the failure that the tool would report."""
    computable = sub_goal[-1].isdigit() and not sub_goal.startswith("item")
    if tool == CODER:
        return Step("ok", tool, sub_goal, result=compute(sub_goal)) if computable else Step("error", tool, sub_goal)
    made_up = rng.choice(ENTITIES) if sub_goal.startswith("item") else str(draw_number(rng))
    return Step("ok", tool, sub_goal, result=UNKNOWN if computable else made_up)
