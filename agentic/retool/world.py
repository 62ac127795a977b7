"""Makes the world of the preset `tiny`: computations whose operators are made-up words.

`What is 352 blick 48 dax 71?` asks for 352 * 48 + 71 if `blick` means `*` and `dax` means `+`. No text says what a word
means. No two splits share a question, and no answer stands in its question or has a single digit.

The demonstrations show the form of programs and answers, and no meaning. A program joins a stretch of the question's
numbers by operators drawn at random, whatever the words between them. What it printed is then answered, right or wrong,
or another program follows. Now and then one of the question's numbers is answered at once. So nobody tells the policy
what a word means, which stretch to compute, or that it pays to compute.

| baseline | what it does |
|---|---|
| no-code | the policy must answer at once |
| random-code | joins all numbers by operators drawn at random, and answers what that gives |
| best-constant | takes every word for the same operator, which is the one that answers the most training tasks |

The last two are scripted, so they copy without mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from agentic.retool.config import ReToolRecipe
from agentic.retool.prompts import CODE, CODE_END, INTERPRETER
from agentic.retool.rollout import ReTool
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.turns import Turns
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Sampling, Task, Trajectory, derive_seed
from core.worlds import Example, Split, World, encode_turn

MEANINGS = {"blick": "*", "dax": "+", "fep": "-", "kiv": "%"}
"""Maps each word to the operator of Python that it means, with its precedence."""
OPERATORS = tuple(MEANINGS.values())
QUESTION = "What is {}?"
ANSWER = "\\boxed{{ {}}}"
AGAIN = 0.2
"""Says how often another program follows a program; a demonstration has at most two."""
AT_ONCE = 0.3
"""Says how often a demonstration answers without a program."""


@dataclass(frozen=True, slots=True)
class ToyComputations:
    """Says how many words a question has, one of `words`, and how many digits its first and other numbers have."""

    words: Sequence[int] = (1, 2)
    first_digits: int = 3
    other_digits: int = 2


DOMAINS: Mapping[str, ToyComputations] = {
    "usual": ToyComputations(),
    "larger-numbers": ToyComputations(first_digits=5, other_digits=4),
    "longer": ToyComputations(words=(3,)),
}
"""Names the domains of tasks. GRPO sees the first alone; the warm start has the form of all."""


@dataclass(frozen=True, slots=True)
class Computation:
    """Holds numbers and the operators between them: made-up words or those of Python."""

    numbers: tuple[int, ...]
    operators: tuple[str, ...]

    def __str__(self) -> str:
        pairs = zip(self.operators, self.numbers[1:], strict=True)
        return " ".join([str(self.numbers[0]), *(f"{operator} {number}" for operator, number in pairs)])

    @classmethod
    def read(cls, question: str) -> Computation:
        """Read the computation of a question."""
        words = re.findall(r"[^\s?]+", question)[2:]
        return cls(tuple(map(int, words[::2])), tuple(words[1::2]))

    def translate(self) -> Computation:
        """Return the program that computes the answer."""
        return Computation(self.numbers, tuple(MEANINGS[word] for word in self.operators))

    def compute(self) -> int:
        """Return the value of a program. Our own generator wrote it: numbers of two digits or more, and operators."""
        return int(eval(str(self), {"__builtins__": {}}))


def draw_computation(rng: Random, domain: ToyComputations) -> Computation:
    """Draw a question's computation, whose answer cannot be read off the question."""
    while True:
        count = rng.choice(domain.words)
        digits = (domain.first_digits, *[domain.other_digits] * count)
        numbers = tuple(rng.randrange(10 ** (n - 1), 10**n) for n in digits)
        drawn = Computation(numbers, tuple(rng.choices(list(MEANINGS), k=count)))
        value = abs(drawn.translate().compute())
        if value > 9 and value not in numbers:
            return drawn


def find_split(question: str) -> Split:
    """Return the split of a question: six of eight belong to training."""
    place = derive_seed(question) % 8
    return "dev" if place == 0 else "test" if place == 1 else "train"


def draw_task(domain: ToyComputations, rng: Random, split: Split, name: str) -> Task | None:
    """Draw a question, or None if it belongs to another split."""
    drawn = draw_computation(rng, domain)
    question, answer = QUESTION.format(drawn), str(drawn.translate().compute())
    if find_split(question) != split:
        return None
    return Task(name, question, (answer,), metadata={"words": len(drawn.operators)})


@dataclass(frozen=True, slots=True)
class ReToolDemonstration:
    """Holds a conversation: programs with what they printed, and the answer."""

    question: str
    programs: tuple[tuple[str, str], ...]
    answer: str


def draw_demonstration(rng: Random, answer_at_once: float = AT_ONCE) -> ReToolDemonstration:
    """Draw a conversation about a new question of any domain."""
    asked = draw_computation(rng, DOMAINS[rng.choice(list(DOMAINS))])
    question = QUESTION.format(asked)
    if rng.random() < answer_at_once:
        return ReToolDemonstration(question, (), write_answer(rng.choice(asked.numbers)))
    drawn = [draw_program(rng, asked) for _ in range(2 if rng.random() < AGAIN else 1)]
    programs = tuple((write_program(program), str(program.compute())) for program in drawn)
    return ReToolDemonstration(question, programs, write_answer(drawn[-1].compute()))


def draw_program(rng: Random, asked: Computation) -> Computation:
    """Draw a stretch of the numbers that has two or more, and operators to join them."""
    first, last = sorted(rng.sample(range(len(asked.numbers)), 2))
    return Computation(asked.numbers[first : last + 1], tuple(rng.choices(OPERATORS, k=last - first)))


def write_program(program: Computation) -> str:
    return f"{CODE} {program}{CODE_END}"


def write_answer(value: int) -> str:
    return ANSWER.format(value)


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(200):
        shown = draw_demonstration(rng, answer_at_once=0.0)
        yield shown.question
        yield "".join(f"{program}{INTERPRETER.format(output=printed)}" for program, printed in shown.programs)
        yield f"{shown.answer}\nuser\nassistant\nsystem\n {' '.join(MEANINGS)}"


def demonstrate(rng: Random, recipe: ReToolRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the turns of conversations."""
    renderer = Renderer(tokenizer)
    while True:
        yield encode(draw_demonstration(rng), renderer)


def encode(shown: ReToolDemonstration, renderer: Renderer) -> list[Example]:
    """Return the turns of a conversation, with the prompts that the rollout would make."""
    tokenizer, turns = renderer.tokenizer, []
    prompt = renderer.render([renderer.message("user", shown.question)])
    for program, printed in shown.programs:
        written = encode_text(tokenizer, program)
        turns.append((prompt, written))
        prompt += written + encode_text(tokenizer, INTERPRETER.format(output=printed))
    return [*turns, (prompt, encode_turn(tokenizer, shown.answer))]


def solve_tasks(rng: Random, recipe: ReToolRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of the right conversations."""
    renderer = Renderer(tokenizer)
    for task in tasks:
        yield from encode(solve(task.question), renderer)


def solve(question: str) -> ReToolDemonstration:
    """Write the right conversation: one program, and its output as the answer."""
    program = Computation.read(question).translate()
    value = program.compute()
    return ReToolDemonstration(question, ((write_program(program), str(value)),), write_answer(value))


class NoCode(ReTool):
    """Begins the reply with the box of the answer, so that no program can be written."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        opening = ANSWER.partition("{{")[0] + "{"
        prompt = self.open_conversation(task) + encode_text(self.tokenizer, opening)
        turns = Turns(replace(sampling, stop_token_ids=(self.tokenizer.eos_token_id,)))
        completion = await turns.ask(roles["policy"], "act", prompt, self.config.max_tokens)
        answer = opening + str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))
        return await self.make_trajectory(task, turns.recorded, [], answer, "answered")


class ScriptedProgrammer(ReTool):
    """Writes one program, whose operators `choose` draws, and answers what the interpreter shows."""

    def __init__(self, recipe: ReToolRecipe, tokenizer: Tokenizer, choose: Callable[[Random], str]):
        super().__init__(recipe, tokenizer)
        self.choose = choose

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        asked, rng = Computation.read(task.question), Random(f"{task.task_id}-{sampling.seed}")
        program = Computation(asked.numbers, tuple(self.choose(rng) for _ in asked.operators))
        replies = iter((write_program(program), write_answer(program.compute())))
        policy = ScriptedPolicy(
            lambda prompt, request: encode_turn(self.tokenizer, next(replies)), decode=self.tokenizer.decode
        )
        return await super().rollout(task, Roles({"policy": policy}), sampling)


def find_best_constant(count: int = 512) -> str:
    """Return the operator that answers the most training tasks if it stands for every word."""
    asked = [(Computation.read(task.question), task.answers[0]) for task in WORLD.draw_tasks("train", count)]

    def count_right(operator: str) -> int:
        programs = ((Computation(each.numbers, (operator,) * len(each.operators)), answer) for each, answer in asked)
        return sum(str(program.compute()) == answer for program, answer in programs)

    return max(OPERATORS, key=count_right)


def always_the_best(recipe: ReToolRecipe, tokenizer: Tokenizer) -> ScriptedProgrammer:
    operator = find_best_constant()
    return ScriptedProgrammer(recipe, tokenizer, lambda rng: operator)


WORLD = World(
    words=tuple(MEANINGS),
    corpus=write_corpus,
    vocab_size=384,
    domains={name: partial(draw_task, domain) for name, domain in DOMAINS.items()},
    copies_digits=True,
    demonstrate=demonstrate,
    solve=solve_tasks,
    baselines={
        "no-code": NoCode,
        "random-code": partial(ScriptedProgrammer, choose=lambda rng: rng.choice(OPERATORS)),
        "best-constant": always_the_best,
    },
)
