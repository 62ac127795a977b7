r"""Scripted turns for the `tiny` preset's warm start, by an annotator who writes good sub-goals and decides badly.

He names the wrong tool, skips a step by putting a number that is at hand in place of a result that he has not got yet,
and forgets to name a tool, in stated proportions (`Annotator`). The policy learns the format, copying and
looking up from him, and what his mistakes lead to; which tool does what, and the rest, is left to RL. Results are made
up: what the world really holds is not in a demonstration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agentic.agentflow.memory import Memory, Step
from agentic.agentflow.tiny.questions import CODER, GENERATOR, Question, compute
from agentic.agentflow.tiny.scripted_roles import is_result
from agentic.agentflow.tiny.tasks import draw, number, solve
from agentic.agentflow.tiny.world import ENTITIES, UNKNOWN

ANSWER = "\\boxed{{ {answer}}}"


@dataclass(frozen=True, slots=True)
class Annotator:
    """How often he names the wrong tool, skips a step where a number is at hand, and names no tool."""

    wrong_tool: float = 0.3
    skip: float = 0.4
    malformed: float = 0.05


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn of `planner.next_step` or `planner.final` as text."""

    role: str
    question: str
    memory: str
    completion: str


def demonstrate(rng: Random, annotator: Annotator, max_steps: int = 3) -> Iterator[Demonstration]:
    """The turns of one rollout on a training question."""
    _, question = draw(rng, "train")
    memory, results = Memory(), dict[str, str]()
    if rng.random() < 0.02:  # with nothing in memory he answers from his head, and is right where no look-up is needed
        answer = list(solve(question).values())[-1] if not (question.facts or question.item) else str(number(rng))
        yield Demonstration("planner.final", question.text, "", ANSWER.format(answer=answer))
    while len(memory.steps) < max_steps and sum(is_result(step.result) for step in memory.steps) < question.needs:
        tool, sub_goal = choose(rng, annotator, question, results)
        malformed = rng.random() < annotator.malformed
        completion = f" {sub_goal}" if malformed else f" {tool} : {sub_goal}"
        yield Demonstration("planner.next_step", question.text, memory.render("compact"), completion)
        step = Step("malformed_step") if malformed else carry_out(rng, tool, sub_goal)
        memory = memory.add(step)
        if is_result(step.result):
            results[sub_goal] = step.result
    if results:
        answer = ANSWER.format(answer=list(results.values())[-1])
        yield Demonstration("planner.final", question.text, memory.render("compact"), answer)


def choose(rng: Random, annotator: Annotator, question: Question, results: dict[str, str]) -> tuple[str, str]:
    """The annotator's tool and sub-goal."""
    right = question.next_step(results)
    assert right is not None, "he is asked while a result is missing"
    at_hand = [*question.numbers, *(value for value in results.values() if value not in ENTITIES)]
    if at_hand and rng.random() < annotator.skip:
        right = question.next_step(results | {right[1]: rng.choice(at_hand)}) or right
    tool, sub_goal = right
    if rng.random() < annotator.wrong_tool:
        tool = GENERATOR if tool == CODER else CODER
    return tool, sub_goal


def carry_out(rng: Random, tool: str, sub_goal: str) -> Step:
    """The step with a made-up result of the right form, or with the failure that it would have ended in."""
    computable = sub_goal[-1].isdigit() and not sub_goal.startswith("item")
    if tool == CODER:
        return Step("ok", tool, sub_goal, result=compute(sub_goal)) if computable else Step("error", tool, sub_goal)
    made_up = rng.choice(ENTITIES) if sub_goal.startswith("item") else str(number(rng))
    return Step("ok", tool, sub_goal, result=UNKNOWN if computable else made_up)
