"""GSM8K with large numbers: a solution becomes a program, and its question another one with the program's answer."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.retool.gsm8k import WORLD, compute, enlarge, main, write_program
from agentic.retool.rollout import SPEC
from core.config import RecipeError
from core.data import read_tasks, write_jsonl
from core.types import Task


def make_task(question: str, solution: str, answer: str = "72") -> Task:
    return Task(question, question, (answer,), metadata={"solution": f"{solution}\n#### {answer}"})


CLIPS = make_task(
    "Natalia sold 48 clips in April, and half as many in May. How many altogether?",
    "In May 48/2 = <<48/2=24>>24 clips, 24 in all.\nThat makes 48 + 24 = $<<48+24=72>>72.",
)
PROGRAM = "# In May a clips, a in all.\na = 48/2\n# That makes b.\nb = 48+a\nprint(b)"
GAMES = make_task("Of 15 games each has 6 parts. How many?", "15*6=<<15*6=90>>90", "90")
BOXES = make_task("Of 3 boxes each has 500 and 5% more?", "It has 3*500=<<3*500=1500>>1,500.\n1,500+0=<<1500+0=1500>>")


@pytest.mark.parametrize(
    ("task", "program"),
    [
        (CLIPS, PROGRAM),
        (make_task("Of 3?", "1+2=<<1+2=3>>3, so 3*3=<<3*3=9>>9."), "# a, so b.\na = 1+2\nb = 3*3\nprint(b)"),
        (BOXES, "# It has a.\na = 3*500\n# b\nb = a+0\nprint(b)"),
        (make_task("How much?", "It is four."), None),
        (make_task("How much?", "".join(f"<<{n}+1={n + 1}>>{n + 1} " for n in range(27))), None),
    ],
    ids=["clips", "a number of the question stays", "thousands", "nothing to compute", "more than letters"],
)
def test_a_solution_becomes_a_program_that_computes_what_it_says(task: Task, program: str | None) -> None:
    assert write_program(task) == program


def test_a_program_is_computed_exactly_and_no_other_code_is() -> None:
    assert compute("a = 1/3\nb = -a*3+.5\nprint(b)") == [Fraction(1, 3), Fraction(-1, 2)]
    for code in ("a = 1/0", "a = 2**9", "a = b", "a = f(1)", "a = 1 +", "a = 'x'"):
        assert compute(f"{code}\nprint(a)") is None


def test_one_number_is_large_in_question_and_program_and_the_answer_follows() -> None:
    made = enlarge(GAMES)
    assert made is not None
    assert made == enlarge(GAMES)
    small = made.metadata["small"]
    (large,) = [word for word in made.question.split() if word.isdigit() and len(word) > 4]
    assert made.question == GAMES.question.replace(small, large, 1)
    assert made.answers == (str(int(large) * 90 // int(small)),)
    assert made.metadata["program"].count(large) == 1
    assert "solution" not in made.metadata


@pytest.mark.parametrize(
    ("question", "solution", "answer"),
    [
        ("48 clips and half?", "48/2 = <<48/2=24>>24, so <<48+24=72>>72", 72),
        ("Of 3 boxes with 15?", "3*15=<<3*15=45>>45", 46),
        ("Of 3 boxes, 3 of which have 5% more?", "3*5=<<3*5=15>>15", 15),
        ("Who has 9 less than 8?", "<<8-9=-1>>-1. <<8-9-1=-2>>", -2),
        ("Of 5 and 3, how many of 9?", "<<5-3=2>>2 more. <<9-4=5>>5", 5),
        ("Of 5 and 3, how many of 25?", "<<5-3=2>>2 more. 25-9-2=<<25-9-2=14>>14", 14),
        ("Of 5 and 25?", "<<5+25=30>>30. <<30/6=5>>5 and <<30-25=5>>5", 5),
        ("Who has 15, at 15% more than 8?", "<<15+8=23>>23", 23),
        ("Of 15, half of it?", "<<15/2=7.5>>7.5", "7.5"),
        ("Of 15 and 9, all?", "<<15+9=24>>24", "24 apples"),
    ],
    ids=[
        "a number that is there twice", "another answer", "which number is it", "negative",
        "a result that is not used", "a number of nowhere", "equal results", "a share of the same number", "not whole",
        "no number",
    ],
)  # fmt: skip
def test_a_question_that_the_rule_does_not_fit_is_left_out(question: str, solution: str, answer: object) -> None:
    made = enlarge(make_task(question, solution, str(answer)))
    assert made is None or made.metadata["small"] != "15"
    assert made is None or question.startswith("Who has 15")


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    keys = ("retool.context_tokens=4096", "model.max_model_len=4096")
    return SPEC.load("desk", [f"data.train={tmp_path / 'train.jsonl'}", *keys])


def test_the_demonstrations_box_what_the_sandbox_printed(recipe: Any, tokenizer: Any, capsys: Any) -> None:
    solve: Any = WORLD.solve
    right = Task("t", CLIPS.question, ("72",), metadata={"program": PROGRAM})
    wrong = Task("u", CLIPS.question, ("73",), metadata={"program": PROGRAM})
    first, last = list(solve(Random(0), recipe, tokenizer, [right, wrong]))
    assert "1 of 2 programs are not rewarded" in capsys.readouterr().err
    write_jsonl(recipe.data.train, [right, wrong])
    assert next(WORLD.demonstrate(Random(0), recipe, tokenizer)) == [first, last]  # type: ignore[misc]
    assert "39 of 64 programs are not rewarded" in capsys.readouterr().err
    assert tokenizer.decode(first[1]) == f"```python\n{PROGRAM}\n```\n```output"
    assert tokenizer.decode(last[0]).endswith("```output\n72.0\n```\n")
    assert tokenizer.decode(last[1], skip_special_tokens=True) == "\\boxed{72}"
    with pytest.raises(RecipeError, match=r"metadata\.program.*large-numbers"):
        list(solve(Random(0), recipe, tokenizer, [CLIPS]))
    with pytest.raises(RecipeError, match="no program of a task prints its answer"):
        list(solve(Random(0), recipe, tokenizer, [wrong]))
    tags = recipe.model_copy(update={"retool": recipe.retool.model_copy(update={"format": "tags"})})
    with pytest.raises(RecipeError, match=r"retool\.format"):
        list(solve(Random(0), tags, tokenizer, [right]))


def test_the_command_writes_what_it_makes_and_refuses_tasks_without_solutions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = tmp_path / "train.jsonl", tmp_path / "large" / "train.jsonl"
    write_jsonl(given, [CLIPS, GAMES])
    assert main([str(given), "--out", str(out)]) == 0
    assert [task.task_id for task in read_tasks(out, require_context=False)] == [GAMES.task_id]
    assert "1 tasks of 2" in capsys.readouterr().out
    write_jsonl(given, [Task("t", "Which?", ("1",))])
    assert main([str(given), "--out", str(out)]) == 1
    assert "tokentrue data download gsm8k" in capsys.readouterr().err
