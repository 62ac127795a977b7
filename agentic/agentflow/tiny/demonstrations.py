"""Scripts single turns for the `tiny` preset's warm start. Where several steps can be taken, chance draws one.

A step that was not taken yet can be one of three: look up the next fact of the question, compute with numbers at hand,
or look up the item that has a number at hand, each with the tool that does it. Where only one is left, it is mostly the
right one. The memory of such a turn holds steps that chance drew. The memory of a final turn holds the right ones, and
the answer boxes the last result. So the policy learns what each tool takes, to copy, and the forms of its answers, and
RL teaches it which step to take when. The baseline `random-step` (baselines.py) says what chance alone is worth.

Numbers have one to four digits; those of RL's questions have two. All results but those of computations are made up: no
demonstration tells a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from agentic.agentflow.memory import Memory, Step
from agentic.agentflow.tiny.facts import ENTITIES, OTHER_ENTITIES
from agentic.agentflow.tiny.questions import CODER, GENERATOR, SYMBOLS, ToyQuestion, compute
from agentic.agentflow.tiny.tasks import Domain, draw_kind, draw_question

ANSWER = "\\boxed{{ {answer}}}"
FINAL = 0.25
"""Is the share of final turns."""
TWO_FACTS = 0.4
"""Is the share of additional questions about two facts, which take longest to learn to read."""
DOMAIN = Domain(digits=(1, 2, 2, 3, 4))


@dataclass(frozen=True, slots=True)
class PlannerDemonstration:
    """Holds one turn of `planner.next_step` or `planner.final` as text."""

    role: str
    question: str
    memory: str
    completion: str


def draw_demonstration(rng: Random) -> PlannerDemonstration:
    """Draw one turn on a training question: a next step, or, in one of four, the answer after the right steps."""
    kind = "twice_compute" if rng.random() < TWO_FACTS else draw_kind(rng)
    question = draw_question(rng, "train", DOMAIN, kind)
    final = rng.random() < FINAL
    results: dict[str, str] = {}
    memory = Memory()
    for _ in range(question.needs if final else rng.randrange(question.needs)):
        step = question.next_step(results) if final else draw_step(rng, question, results)
        assert step is not None, "a question needs as many results as `needs` says"
        tool, sub_goal = step
        results[sub_goal] = compute(sub_goal) if tool == CODER else make_up_result(rng, sub_goal)
        memory = memory.add(Step("ok", tool, sub_goal, result=results[sub_goal]))
    if final:
        role, completion = "planner.final", ANSWER.format(answer=list(results.values())[-1])
    else:
        role, completion = "planner.next_step", " {} : {}".format(*draw_step(rng, question, results))
    return PlannerDemonstration(role, question.text, memory.render("compact"), completion)


def draw_step(rng: Random, question: ToyQuestion, results: Mapping[str, str]) -> tuple[str, str]:
    """Draw one of `list_steps`, each as likely."""
    return rng.choice(list_steps(rng, question, results))


def list_steps(rng: Random, question: ToyQuestion, results: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return tools with sub-goals that they can carry out and that are not among the sub-goals of `results`.

    Where a computation lacks an operand, a number at hand stands for it. An item is looked up by a number at hand.
    """
    at_hand = [number for number in (*question.numbers, *results.values()) if number not in ENTITIES]
    steps = [(GENERATOR, fact) for fact in question.facts if fact not in results][:1]
    if at_hand and question.operation:
        operands = [results.get(o) if isinstance(o, str) else str(o) for o in (question.left, question.right)]
        left, right = (operand or rng.choice(at_hand) for operand in operands)
        steps.append((CODER, f"{left} {SYMBOLS[question.operation]} {right}"))
    if at_hand and question.item:
        steps.append((GENERATOR, f"item {rng.choice(at_hand)}"))
    return [step for step in steps if step[1] not in results]


def lookup_drill(rng: Random) -> tuple[str, str]:
    """Draw two to four made-up facts as a prompt. The completion repeats them in another order."""
    domain = Domain((*ENTITIES, *OTHER_ENTITIES), DOMAIN.digits)
    facts = [f" {domain.draw_fact(rng)} = {domain.draw_number(rng)}." for _ in range(rng.randint(2, 4))]
    return "".join(facts), "".join(rng.sample(facts, len(facts)))


def make_up_result(rng: Random, query: str) -> str:
    """Return a made-up answer of the right form to a look-up."""
    return rng.choice(ENTITIES) if query.startswith("item") else str(DOMAIN.draw_number(rng))
