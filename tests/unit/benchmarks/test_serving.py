"""What every evaluation refuses before a model is loaded."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.aime import evaluate as aime
from benchmarks.heldout import __main__ as heldout
from benchmarks.ruler import evaluate as ruler
from benchmarks.tau2 import evaluate as tau2

OPTIONS = (("--temperature", "-1"), ("--top-p", "2"), ("--top-p", "0"), ("--deadline", "-1"), ("--concurrency", "0"))


@pytest.mark.parametrize(
    ("parser", "option", "value"),
    [
        *(
            (make(), *given)
            for make in (aime.make_parser, heldout.make_parser, ruler.make_parser, tau2.make_parser)
            for given in OPTIONS
        ),
        (aime.make_parser(), "--seed", "-1"),
        (heldout.make_parser(), "--seeds", "-1"),
        (ruler.make_parser(), "--seeds", "-1"),
    ],
)
def test_what_no_task_can_be_sampled_with(
    parser: argparse.ArgumentParser, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args([option, value])
    assert f"argument {option}: Input should be " in (error := capsys.readouterr().err)
    assert f"(is '{value}')" in error
