"""Makes tasks with large numbers of GSM8K's training questions, as GSM-Hard was made of its test (preset `desk`).

    tokentrue data large-numbers data/gsm8k/train.jsonl --out data/gsm8k-large/train.jsonl

A solution marks its computations: `Tom has 2*3=<<2*3=6>>6 apples.` By rule it becomes a program: a sentence is a
comment, and below it stand its computations, where the result of an earlier line is that line's variable. If the
program computes the published answer, a number that question and program have once each is made large in both, and the
program computes the new answer. Left out is what makes that doubtful (`is_plain`, `enlarge`).
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import operator
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from string import ascii_lowercase

from agentic.retool.config import ReToolRecipe
from agentic.retool.rollout import ReTool
from core.config import RecipeError
from core.data import DataError, read_tasks, write_jsonl
from core.options import show_errors
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.programs import OUTPUT
from core.text.tokenizer import Ids, Tokenizer
from core.types import Sampling, Task
from core.worlds import Example, World, encode_turn

_COMPUTED = re.compile(r"(?:(?<!\w)[-+*/x×().,\d\s$%]*=)?[\s$]*<<([-+*/().\d\s]+)=([.\d]+)>>[\d.,]*(?<![.,])")
"""Matches a computation as it stands in a sentence, its annotation, and its result behind it."""
_ANY_NUMBER = re.compile(r"(?<![\w.,])[\d.,]*\d(?!\w)")
_NUMBER = re.compile(r"(?<![\w.,/])[\d.,]*\d(?![\w%/])")
"""Matches a number that is no share of anything, as 50% or 1/2."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_LITERAL = re.compile(r"(?:\d+\.?\d*|\.\d+)")
WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
CONSTANTS = frozenset("2 7 12 24 30 52 60 100 365 1000 .5 0.5 .01 0.01".split())
"""Lists the numbers that a solution may have beside those of its question: halves, days, hours, cents."""
LARGE = (10_000, 10_000_000)
"""Bounds the numbers that are put in; GSM-Hard's have up to seven digits."""
AT_ONCE = 64
"""Says how many demonstrations are played with one method, whose processes start once for all of them."""


def write_program(task: Task) -> str | None:
    """Return the program of a task's solution, or None if it has no computations or more than there are letters."""
    solution = str(task.metadata.get("solution", "")).partition("\n####")[0]
    given, letters = set(_NUMBER.findall(task.question)), iter(ascii_lowercase)
    known: dict[str, str] = {}
    lines, name = [], ""

    def use_names(text: str) -> str:
        return _ANY_NUMBER.sub(lambda number: known.get(number[0].replace(",", ""), number[0]), text)

    for sentence in solution.splitlines():
        computed: dict[str, str] = {}
        for expression, result in _COMPUTED.findall(sentence):
            if not (name := next(letters, "")):
                return None
            computed[name] = use_names(expression).strip()
            if result not in given:  # such a number may as well be the question's
                known[result] = name
        names = iter(computed)
        said = use_names(_COMPUTED.sub(lambda _, names=names: f" {next(names)}", sentence))  # type: ignore[misc]
        lines += [f"# {' '.join(said.split())}", *(" = ".join(line) for line in computed.items())]
    return "\n".join([*lines, f"print({name})"]) if name else None


def list_computations(program: str) -> list[tuple[str, str]]:
    """Return (variable, expression) of each line that computes."""
    return [(line[0], line[4:]) for line in program.splitlines() if line[1:4] == " = "]


def compute(program: str) -> list[Fraction] | None:
    """Return the results of a program's lines, exactly; None for a division by 0, or what is no arithmetic."""
    values: dict[str, Fraction] = {}

    def evaluate(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int() | float() as value):
                return Fraction(str(value))
            case ast.Name(id=name):
                return values[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -evaluate(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return Fraction(_OPERATORS[type(op)](evaluate(left), evaluate(right)))
        raise ValueError(f"no arithmetic: {ast.unparse(node)}")

    try:
        for name, expression in list_computations(program):
            values[name] = evaluate(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return None
    return list(values.values())


def is_plain(program: str, results: Sequence[Fraction], given: Collection[str]) -> bool:
    """Return whether it is clear where each number of a program comes from.

    Its literals are the question's (`given`) or constants; each is no result, all results differ, and each but the last
    is used. Else a sentence may have computed in its head, and would go on with the small number's result.
    """
    lines = list_computations(program)
    literals = {number for _, line in lines for number in _LITERAL.findall(line)}
    used = {name for place, (_, line) in enumerate(lines) for name, _ in lines[:place] if name in line}
    return (
        literals <= {*given, *CONSTANTS}
        and {Fraction(number) for number in literals}.isdisjoint(results)
        and len(set(results)) == len(results) == len(used) + 1
    )


def enlarge(task: Task) -> Task | None:
    """Return the task with one large number, drawn by its id, or None where the rule above makes none.

    So it is, too, where the program is not plain, the answer stays the same or is no number, or a result is negative or
    the answer is not whole.
    """
    program, rng = write_program(task), Random(task.task_id)
    results = None if program is None else compute(program)
    if not program or not results or results[-1:] != compute(f"a = {task.answers[0].replace(',', '')}"):
        return None
    given = [number.replace(",", "") for number in _NUMBER.findall(task.question)]
    spelled = {str(number) for number, word in enumerate(WORDS, 1) if word in task.question.lower().split()}
    if not is_plain(program, results, {*given, *spelled}):
        return None
    in_program = Counter(number for _, line in list_computations(program) for number in _LITERAL.findall(line))
    once = [number for number in given if given.count(number) == in_program[number] == 1 and number.isdigit()]
    if not once:
        return None
    small, large = rng.choice(once), str(rng.randrange(*LARGE))
    number = re.compile(rf"(?<![\w.,]){small}(?!\w|[.,]\d)")
    question, found = number.subn(large, task.question)
    enlarged = number.sub(large, program)
    answers = compute(enlarged)
    if found != 1 or not answers or min(answers) < 0 or answers[-1] == results[-1] or answers[-1].denominator != 1:
        return None
    metadata = {"program": enlarged, "small": small}
    return replace(task, question=question, answers=(str(answers[-1]),), metadata=metadata)


async def play(recipe: ReToolRecipe, tokenizer: Tokenizer, tasks: Iterable[Task]) -> list[list[Example]]:
    """Return the turns of rollouts that write the program and box what it prints, where that is rewarded.

    Raises:
        RecipeError: no rollout is rewarded.
    """
    method = ReTool(recipe, tokenizer)
    played: list[list[Example]] = []
    try:
        for task in tasks:
            annotator = make_annotator(tokenizer, task.metadata["program"])
            rollout = await method.rollout(task, Roles({"policy": annotator}), Sampling())
            if rollout.reward == 1:
                played.append([(turn.prompt_ids, turn.completion.token_ids) for turn in rollout.turns])
    finally:
        await method.close()
    if not played:
        raise RecipeError("data.train: no program of a task prints its answer within the limits of section `retool`")
    return played


def make_annotator(tokenizer: Tokenizer, program: str) -> ScriptedPolicy:
    """Return a policy that writes the program, then boxes what it printed. A turn stops where output is to follow."""
    written = f"```python\n{program}\n```\n{OUTPUT}"

    def write(prompt: Ids, sampling: Sampling) -> Ids:
        _, ran, printed = str(tokenizer.decode(prompt)).partition(written)
        value = printed.partition("```")[0].strip().removesuffix(".0")
        return encode_turn(tokenizer, f"\\boxed{{{value}}}" if ran else written)

    return ScriptedPolicy(write, decode=tokenizer.decode)


def demonstrate(rng: Random, recipe: ReToolRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield right rollouts of training tasks drawn at random; tell once that others are left out."""
    tasks, told = read_tasks(recipe.data.train, require_context=False), False
    check_tasks(recipe, tasks)
    while True:
        played = asyncio.run(play(recipe, tokenizer, rng.choices(tasks, k=AT_ONCE)))
        told = told or tell_missed(AT_ONCE, len(played))
        yield from played


def solve(rng: Random, recipe: ReToolRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of right rollouts of all tasks, for the supervised baseline."""
    check_tasks(recipe, tasks)
    played = asyncio.run(play(recipe, tokenizer, tasks))
    tell_missed(len(tasks), len(played))
    for turns in played:
        yield from turns


def tell_missed(count: int, rewarded: int) -> bool:
    """Tell how many of `count` demonstrations are left out, if any. Return whether there are some."""
    if missed := count - rewarded:
        print(f"note: data.train: {missed} of {count} programs are not rewarded, and left out", file=sys.stderr)
    return missed > 0


def check_tasks(recipe: ReToolRecipe, tasks: Sequence[Task]) -> None:
    """Raise RecipeError if the policy would not read fences, or a task has no program."""
    if recipe.retool.format != "fences":
        raise RecipeError("retool.format: the demonstrations have fences. Fix: take `fences`, or `warm_start: null`")
    if missing := next((task for task in tasks if "program" not in task.metadata), None):
        raise RecipeError(
            f"data.train: task {missing.task_id} has no metadata.program to demonstrate. Fix: make tasks by `tokentrue "
            "data large-numbers data/gsm8k/train.jsonl --out FILE`, or set `warm_start: null`"
        )


WORLD = World(demonstrate=demonstrate, in_order=True, solve=solve)


@show_errors(DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    given = read_tasks(options.tasks, require_context=False)
    if not any("solution" in task.metadata for task in given):
        raise DataError(f"{options.tasks}: no task has `metadata.solution`. Fix: tokentrue data download gsm8k")
    made = [task for task in map(enlarge, given) if task is not None]
    write_jsonl(options.out, made)
    print(f"{options.out}: {len(made):,} tasks of {len(given):,}; no number of the others could be made large by rule")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokentrue data large-numbers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("tasks", type=Path, metavar="FILE", help="train.jsonl or eval.jsonl of GSM8K")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser
