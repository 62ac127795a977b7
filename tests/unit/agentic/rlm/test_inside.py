"""What runs in the sandbox: programs share variables, stop at a question, and find its answer when they run again."""

from __future__ import annotations

from typing import Any

import pytest

from agentic.rlm.inside import CHANGED, REFUSAL, play

Answered = list[tuple[list[str], list[str]]]


def run(*programs: str, answered: Answered | None = None, subcalls: int = 4) -> dict[str, Any]:
    return play("a document", "what?", list(programs), answered or [], subcalls, 100)


def test_programs_share_their_variables_and_the_last_one_is_reported() -> None:
    report = run("n = len(context); print('first')", "print(n, question)")
    assert report == {"asks": [], "printed": "10 what?\n", "characters": 9, "final": None, "error": ""}


def test_a_question_stops_a_program_until_its_answer_is_there() -> None:
    program = "print(1); a = llm_query('x'); b = llm_query_batched(['y', a]); print(a, *b)"
    report = run(program)
    assert (report["asks"], report["printed"]) == (["x"], "1\n")
    report = run(program, answered=[(["x"], ["A"])])
    assert report["asks"] == ["y", "A"]
    report = run(program, "print(b)", answered=[(["x"], ["A"]), (["y", "A"], ["B", "C"])])
    assert (report["asks"], report["printed"]) == ([], "['B', 'C']\n")


@pytest.mark.parametrize(
    "catch", ["try:\n a = llm_query('x')\nexcept BaseException:\n a = llm_query('z')", "import sys; llm_query('x')"]
)
def test_a_program_that_catches_the_stop_asks_its_first_question_all_the_same(catch: str) -> None:
    assert run(catch)["asks"] == ["x"]


def test_calls_beyond_the_limit_are_refused_in_words_and_ask_nobody() -> None:
    program = "a = llm_query_batched(['x', 'y', 'z']); print(a, llm_query('w'))"
    assert run(program, subcalls=2)["asks"] == ["x", "y"]
    printed = play("d", "q", [program], [(["x", "y"], ["A", "B"])], 2, 1000)["printed"]
    assert printed == f"['A', 'B', '{REFUSAL}'] {REFUSAL}\n"
    assert run("print(llm_query_batched([]))")["printed"] == "[]\n"


def test_a_program_that_does_not_do_the_same_again_is_told() -> None:
    report = run("llm_query('x')", answered=[(["another"], ["A"])])
    assert report["error"] == f"RuntimeError: {CHANGED}"[:100]
    draws = [run("import random; print(random.random())")["printed"] for _ in range(2)]
    assert draws[0] == draws[1]


def test_what_goes_wrong_is_an_error_in_words_and_the_next_program_runs() -> None:
    assert run("1 // 0")["error"] == "ZeroDivisionError: integer division or modulo by zero"
    assert run("this is no program")["error"].startswith("SyntaxError")
    assert run("n = 3\nraise SystemExit", "print(n)")["printed"] == "3\n"
    report = run("n = 3\n1 // 0", "print(n)")
    assert (report["printed"], report["error"]) == ("3\n", "")


def test_final_gives_the_answer_as_text_and_output_is_cut() -> None:
    assert run("FINAL(40 + 2)")["final"] == "42"
    report = run("print('x' * 500)")
    assert (len(report["printed"]), report["characters"]) == (100, 501)
