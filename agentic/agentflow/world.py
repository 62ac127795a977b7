"""Makes the world of the preset `tiny`: questions of one to three steps about made-up facts.

| | question | right steps |
|---|---|---|
| compute | What is 37 times 48? | python_coder |
| look up | What is the price of lamp? | base_generator |
| look up, compute | What is the price of lamp minus 12? | base_generator, python_coder |
| compute, look up | Which item has number 37 times 48? | python_coder, base_generator |
| twice, compute | What is the price of lamp plus the age of boat? | base_generator twice, python_coder |
| all three | Which item has number 37 times the age of boat? | base_generator, python_coder, base_generator |

Every fact follows from a hash, so nobody can guess it. A question belongs to the split of the facts that it looks up,
or of its expression if it looks up nothing. So no question and no fact is in two splits.

The warm start shows single turns, and where several steps can be taken, chance draws one. A step that was not taken yet
can be one of three: look up the next fact of the question, compute with numbers at hand, or look up the item that has a
number at hand, each with the tool that does it. Where only one is left, it is mostly the right one. The memory of such
a turn holds steps that chance drew. The memory of a final turn holds the right ones, and the answer boxes the last
result. So the policy learns what each tool takes, to copy, and the forms of its answers, and RL teaches it which step
to take when. Numbers have one to four digits; those of RL's questions have two. All results but those of computations
are made up: no demonstration tells a fact.

| baseline | next steps | final answer |
|---|---|---|
| always-python-coder | the right sub-goals, always to python_coder | the policy's |
| always-base-generator | the right sub-goals, always to base_generator | the policy's |
| random-tool | the right sub-goals, each to a tool drawn at random | the policy's |
| random-step | one of the steps that can be taken, drawn at random | the policy's |
| no-tool | none | the policy's, from the question alone |

The sub-goals come from an oracle. So each baseline bounds every planner that chooses tools in its way, except for
mistakes in the final answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Literal

from agentic.agentflow.config import AgentFlowRecipe, make_toolbox
from agentic.agentflow.memory import Memory, Step
from agentic.agentflow.role_client import RoleClient, Slots
from agentic.agentflow.rollout import AgentFlow, build
from core.policy.base import Roles
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory, derive_seed
from core.worlds import SPLITS, Example, Split, World, encode_turn

ATTRIBUTES = ("price", "weight", "length", "age")
ENTITIES = tuple(
    """
    anchor apple basket bell bench blanket boat bottle brick broom brush bucket button camera candle canoe carpet cart
    chain chair clock coat compass cradle crown curtain desk drum engine feather fence flag flute fork globe glove
    guitar hammer hat helmet jacket jar kettle kite knife ladder lamp lantern mirror nail needle oven paddle pencil
    piano pillow pipe plate pump rope saddle sail shovel spoon
    """.split()
)
OTHER_ENTITIES = (
    "stove sword table tent towel tray trumpet umbrella vase violin wagon wallet wheel whistle window yarn".split()
)
"""Lists what is in no question of training and in no demonstration; the policy meets them in the drills alone."""
WORDS = (*ATTRIBUTES, *ENTITIES, *OTHER_ENTITIES)
UNKNOWN = "unknown"
TAGS = ("<step>", "<analysis>", "<memory>", "<final>", "<command>", "<verify>")
"""Mark the parts of the compact prompts."""

CODER, GENERATOR = "python_coder", "base_generator"
SYMBOLS = {"plus": "+", "minus": "-", "times": "*"}
Operand = int | str
"""Holds a number, or a fact to look up, such as `price of lamp`."""

ANSWER = "\\boxed{{ {answer}}}"
FINAL = 0.25
"""Sets the share of final turns."""
VERDICTS = 0.25
"""Sets the share of verdicts where the verifier is trained."""
TWO_FACTS = 0.4
"""Sets the share of additional questions about two facts, which take longest to learn to read."""


def look_up(query: str) -> str:
    """Answer `price of lamp` with two digits, `item 1739` with an entity, and every other query with UNKNOWN."""
    match = re.fullmatch(r"(\w+) of (\w+)", query)
    if match and match[1] in ATTRIBUTES and match[2] in (*ENTITIES, *OTHER_ENTITIES):
        return str(10 + derive_seed("world", query) % 90)
    if re.fullmatch(r"item -?\d+", query):
        return ENTITIES[derive_seed("world", query) % len(ENTITIES)]
    return UNKNOWN


def assign_split(query: str) -> Split:
    """Return the split of a query: five in eight belong to training, one to dev, two to test."""
    return SPLITS[(0, 0, 0, 0, 0, 1, 2, 2)[derive_seed("split", query) % 8]]


@dataclass(frozen=True, slots=True)
class ToyQuestion:
    """Asks for the value of `left`, or of `left operation right`, or for the item that has this value as its number."""

    left: Operand
    operation: str | None = None
    right: Operand = 0
    item: bool = False

    @classmethod
    def read(cls, text: str) -> ToyQuestion:
        """Parse a question. Raises ValueError for a text outside the grammar."""
        operand = r"(\d+|the \w+ of \w+)"
        match = re.fullmatch(rf"(What is|Which item has number) {operand}(?: ({'|'.join(SYMBOLS)}) {operand})?\?", text)
        if not match:
            raise ValueError(f"not a question of the tiny preset (agentic/agentflow/world.py): {text!r}")
        left, right = (int(o) if o.isdigit() else o.removeprefix("the ") for o in (match[2], match[4] or "0"))
        return cls(left, match[3], right, item=match[1].startswith("Which"))

    @property
    def text(self) -> str:
        left, right = (f"the {o}" if isinstance(o, str) else str(o) for o in (self.left, self.right))
        value = f"{left} {self.operation} {right}" if self.operation else left
        return f"{'Which item has number' if self.item else 'What is'} {value}?"

    @property
    def facts(self) -> tuple[str, ...]:
        """Return the facts that must be looked up before anything can be computed."""
        operands = (self.left, self.right) if self.operation else (self.left,)
        return tuple(dict.fromkeys(o for o in operands if isinstance(o, str)))

    @property
    def numbers(self) -> tuple[str, ...]:
        operands = (self.left, self.right) if self.operation else (self.left,)
        return tuple(str(o) for o in operands if isinstance(o, int))

    @property
    def needs(self) -> int:
        """Return how many results the answer takes; it follows from the form of the question alone."""
        return len(self.facts) + (self.operation is not None) + self.item

    def next_step(self, results: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the right tool and sub-goal after `results` (sub-goal -> result); None when nothing is left to do."""
        for fact in self.facts:
            if fact not in results:
                return GENERATOR, fact
        left, right = (results[o] if isinstance(o, str) else str(o) for o in (self.left, self.right))
        value = left
        if self.operation:
            expression = f"{left} {SYMBOLS[self.operation]} {right}"
            if expression not in results:
                return CODER, expression
            value = results[expression]
        if self.item and f"item {value}" not in results:
            return GENERATOR, f"item {value}"
        return None


def compute(expression: str) -> str:
    """Compute an expression such as `37 * 48`, without the sandbox."""
    left, symbol, right = expression.split()
    a, b = int(left), int(right)
    return str({"+": a + b, "-": a - b, "*": a * b}[symbol])


@dataclass(frozen=True, slots=True)
class ToyDomain:
    """Says what questions ask about: the things, and how many digits a number may have, each as likely."""

    entities: Sequence[str] = ENTITIES
    digits: Sequence[int] = (2,)
    required: Literal["numbers", "facts"] | None = None
    """Names what every question of a data file has."""

    def draw_number(self, rng: Random) -> int:
        digits = rng.choice(self.digits)
        return rng.randint(10 ** (digits - 1), 10**digits - 1)

    def draw_fact(self, rng: Random) -> str:
        return f"{rng.choice(ATTRIBUTES)} of {rng.choice(self.entities)}"


DOMAINS = {
    "usual": ToyDomain(),
    "larger-numbers": ToyDomain(digits=(3,), required="numbers"),
    "other-things": ToyDomain(OTHER_ENTITIES, required="facts"),
}
"""Names the domains of tasks. GRPO sees the first alone; a question of another has at least one of its numbers or
things. The warm start has numbers of three digits in its demonstrations, and the other things in its drills."""
SHOWN = ToyDomain(digits=(1, 2, 2, 3, 4))
"""Describes the domain of the demonstrations."""


def draw_operation(rng: Random) -> str:
    return rng.choice(list(SYMBOLS))


def _computation(rng: Random, domain: ToyDomain, item: bool = False) -> ToyQuestion:
    return ToyQuestion(domain.draw_number(rng), draw_operation(rng), domain.draw_number(rng), item)


def _mixture(rng: Random, domain: ToyDomain, item: bool = False) -> ToyQuestion:
    operands: list[Operand] = [domain.draw_fact(rng), domain.draw_number(rng)]
    rng.shuffle(operands)
    return ToyQuestion(operands[0], draw_operation(rng), operands[1], item)


def _two_facts(rng: Random, domain: ToyDomain) -> ToyQuestion:
    left = right = domain.draw_fact(rng)
    while left == right:
        right = domain.draw_fact(rng)
    return ToyQuestion(left, draw_operation(rng), right)


KINDS: Mapping[str, tuple[float, Callable[[Random, ToyDomain], ToyQuestion]]] = {
    "compute": (0.08, _computation),
    "look_up": (0.08, lambda rng, domain: ToyQuestion(domain.draw_fact(rng))),
    "look_up_compute": (0.22, _mixture),
    "compute_look_up": (0.18, lambda rng, domain: _computation(rng, domain, item=True)),
    "twice_compute": (0.22, _two_facts),
    "all_three": (0.22, lambda rng, domain: _mixture(rng, domain, item=True)),
}
"""Maps each kind to its share of the questions and to the function that draws one."""


def draw_kind(rng: Random) -> str:
    return rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]


def draw_question(rng: Random, split: Split, domain: ToyDomain, kind: str) -> ToyQuestion:
    """Draw a question of a kind that belongs to `split`."""
    while True:
        question = KINDS[kind][1](rng, domain)
        if find_split(question) == split:
            return question


def solve(question: ToyQuestion) -> dict[str, str]:
    """Return the results of the right steps, by sub-goal and in their order; the last is the answer."""
    results: dict[str, str] = {}
    while step := question.next_step(results):
        tool, sub_goal = step
        results[sub_goal] = compute(sub_goal) if tool == CODER else look_up(sub_goal)
    return results


def find_split(question: ToyQuestion) -> Split | None:
    """Return the split of a question; None if its facts belong to several splits."""
    steps = list(solve(question))
    facts = [step for step in steps if look_up(step) != "unknown"]
    splits = {assign_split(step) for step in facts or steps}
    return splits.pop() if len(splits) == 1 else None


def draw_task(domain: ToyDomain, rng: Random, split: Split, name: str) -> Task | None:
    """Draw a task, or None if it lacks what every question of the domain has."""
    kind = draw_kind(rng)
    question = draw_question(rng, split, domain, kind)
    if domain.required and not getattr(question, domain.required):
        return None
    return Task(name, question.text, (list(solve(question).values())[-1],), metadata={"kind": kind})


def is_result(text: str) -> bool:
    """Return whether a text has the form of a result: a number or an entity, neither `unknown` nor an error."""
    return text.removeprefix("-").isdigit() or text in ENTITIES


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
    question = draw_question(rng, "train", SHOWN, kind)
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


def draw_lookup_drill(rng: Random) -> tuple[str, str]:
    """Draw two to four made-up facts as a prompt. The completion repeats them in another order."""
    domain = ToyDomain((*ENTITIES, *OTHER_ENTITIES), SHOWN.digits)
    facts = [f" {domain.draw_fact(rng)} = {domain.draw_number(rng)}." for _ in range(rng.randint(2, 4))]
    return "".join(facts), "".join(rng.sample(facts, len(facts)))


def make_up_result(rng: Random, query: str) -> str:
    """Return a made-up answer of the right form to a look-up."""
    return rng.choice(ENTITIES) if query.startswith("item") else str(SHOWN.draw_number(rng))


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(600):
        turn = draw_demonstration(rng)
        yield f"{turn.question}{turn.memory}{turn.completion} {' '.join(WORDS)}"
    yield "CONTINUE STOP\nuser\nassistant\nsystem\n"


def demonstrate(rng: Random, recipe: AgentFlowRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield single turns. Where the verifier is trained, a quarter are its own."""
    method = build(recipe, tokenizer)
    verifies = recipe.agentflow.roles["verifier"].trained
    while True:
        turn = draw_demonstration(rng)
        if verifies and rng.random() < VERDICTS:
            # Chance draws the verdict: that there are two is all that is shown.
            turn = replace(turn, role="verifier", completion=rng.choice(("STOP", "CONTINUE")))
        yield [encode(turn, method)]


def encode(turn: PlannerDemonstration, method: AgentFlow) -> Example:
    """Encode a turn just as the rollout asks the role."""
    prompter = method.prompters[turn.role]
    prompt = prompter.render({"question": turn.question, "analysis": "", "memory": turn.memory})
    return prompt, encode_turn(method.tokenizer, turn.completion)


def solve_tasks(rng: Random, recipe: AgentFlowRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of the right rollouts."""
    method = build(recipe, tokenizer)
    for task in tasks:
        yield from (encode(turn, method) for turn in write_right_turns(ToyQuestion.read(task.question)))


def write_right_turns(question: ToyQuestion) -> Iterator[PlannerDemonstration]:
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


Results = Mapping[str, str]
Choose = Callable[[Random, ToyQuestion, Results], tuple[str, str]]


class ScriptedPlanner(AgentFlow):
    """A planner whose next steps `choose(random numbers, question, results)` says, as a tool and a sub-goal."""

    def __init__(self, choose: Choose, recipe: AgentFlowRecipe, tokenizer: Tokenizer):
        super().__init__(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)
        self.choose = choose

    async def ask_with_memory(self, client: RoleClient, role: str, known: Slots, memory: Memory) -> str:
        if role != "planner.next_step":
            return await super().ask_with_memory(client, role, known, memory)
        results = {step.sub_goal: step.result for step in memory.steps if is_result(step.result)}
        rng = Random(f"{client.seed}-{len(memory.steps)}")
        return " {} : {}".format(*self.choose(rng, ToyQuestion.read(str(known["question"])), results))


def draw_tool(tools: Sequence[str], rng: Random, question: ToyQuestion, results: Results) -> tuple[str, str]:
    """Return the right sub-goal with one of `tools`, drawn at random."""
    step = question.next_step(results)
    assert step is not None, "the verifier stops once nothing is missing"
    return rng.choice(tools), step[1]


class NoToolPlanner(AgentFlow):
    """A planner that takes no step and answers at once."""

    def __init__(self, recipe: AgentFlowRecipe, tokenizer: Tokenizer):
        super().__init__(recipe.agentflow, make_toolbox(recipe.agentflow), tokenizer)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        client = self.new_client(roles, sampling)
        known = {"question": task.question, "analysis": "", "memory": ""}
        answer = await client.ask("planner.final", known, budgeted=False)
        return await self.make_trajectory(task, client, Memory(), answer, "no_tool", 0)


WORLD = World(
    words=WORDS,
    tags=TAGS,
    corpus=write_corpus,
    vocab_size=704,
    domains={name: partial(draw_task, domain) for name, domain in DOMAINS.items()},
    copies_digits=True,
    lookup=draw_lookup_drill,
    demonstrate=demonstrate,
    solve=solve_tasks,
    baselines={
        "always-python-coder": partial(ScriptedPlanner, partial(draw_tool, (CODER,))),
        "always-base-generator": partial(ScriptedPlanner, partial(draw_tool, (GENERATOR,))),
        "random-tool": partial(ScriptedPlanner, partial(draw_tool, (CODER, GENERATOR))),
        "random-step": partial(ScriptedPlanner, draw_step),
        "no-tool": NoToolPlanner,
    },
)
