"""The demonstrations on GSM8K: a solution becomes a program, and a rewarded rollout of the real method."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.retool.gsm8k import WORLD, write_program
from agentic.retool.rollout import SPEC
from core.config import RecipeError
from core.data import write_jsonl
from core.types import Task

CLIPS = Task(
    "clips",
    "Natalia sold clips to 48 of her friends in April, and half as many in May. How many altogether?",
    ("72",),
    metadata={
        "solution": "In May 48/2 = <<48/2=24>>24 clips, 24 in all.\nThat makes 48+24 = $<<48+24=72>>72.\n#### 72"
    },
)
PROGRAM = """# In May a clips, a in all.
a = 48/2
# That makes b.
b = 48+a
print(b)"""
WRONG = Task("wrong", "What is 1 + 2?", ("4",), metadata={"solution": "It is 1+2=<<1+2=3>>3, and one more.\n#### 4"})
PLAIN = Task("plain", "Which?", ("4",))


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    write_jsonl(tmp_path / "train.jsonl", [CLIPS, WRONG, PLAIN])
    return SPEC.load(
        "desk",
        [f"data.train={tmp_path / 'train.jsonl'}", "retool.context_tokens=4096", "model.max_model_len=4096"],
    )


@pytest.mark.parametrize(
    ("question", "solution", "program"),
    [
        (CLIPS.question, CLIPS.metadata["solution"], PROGRAM),
        (
            "Of 3 boxes?",
            "Each has 1+2=<<1+2=3>>3, so 3*3=<<3*3=9>>9.",
            "# Each has a, so b.\na = 1+2\nb = 3*3\nprint(b)",
        ),
        ("How much?", "It is 2 x 500 = <<2*500=1000>>1,000.\n1,000/4 = <<1000/4=250>>250", None),
        ("How much?", "It is four.", ""),
        ("How much?", "".join(f"<<{n}+1={n + 1}>>{n + 1} " for n in range(27)), ""),
    ],
    ids=["clips", "a number of the question stays", "thousands", "nothing to compute", "more than letters"],
)
def test_a_solution_becomes_a_program_that_computes_what_it_says(
    question: str, solution: str, program: str | None
) -> None:
    written = write_program(Task("t", question, ("1",), metadata={"solution": solution}))
    thousands = "# It is a.\na = 2*500\n# b\nb = a/4\nprint(b)"
    assert written == (thousands if program is None else program or None)


def test_the_demonstrations_are_the_rewarded_rollouts_with_what_the_sandbox_printed(
    recipe: Any, tokenizer: Any
) -> None:
    (first, last), *_ = islice(WORLD.demonstrate(Random(0), recipe, tokenizer), 2)  # type: ignore[misc]
    assert tokenizer.decode(first[1]) == f"```python\n{PROGRAM}\n```\n```output"
    assert tokenizer.decode(last[0]).endswith("```output\n72.0\n```\n")
    assert tokenizer.decode(last[1], skip_special_tokens=True) == "\\boxed{72}"
    assert tuple(last[0][: len(first[0]) + len(first[1])]) == (*first[0], *first[1])
    solved = list(WORLD.solve(Random(0), recipe, tokenizer, [CLIPS, WRONG, PLAIN]))  # type: ignore[misc]
    assert solved == [first, last]


def test_what_cannot_be_demonstrated_is_refused(recipe: Any, tokenizer: Any) -> None:
    solve: Any = WORLD.solve
    with pytest.raises(RecipeError, match=r"metadata\.solution.*data download gsm8k"):
        list(solve(Random(0), recipe, tokenizer, [PLAIN]))
    with pytest.raises(RecipeError, match="of 1 solutions as programs none prints the answer"):
        list(solve(Random(0), recipe, tokenizer, [WRONG]))
    tags = recipe.model_copy(update={"retool": recipe.retool.model_copy(update={"format": "tags"})})
    with pytest.raises(RecipeError, match=r"retool\.format: the demonstrations have fences"):
        list(solve(Random(0), tags, tokenizer, [CLIPS]))
