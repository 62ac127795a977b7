"""The command that makes samples, and how many units fit a length."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ruler.generate import TOLERANCE, fit_units, main
from core.data import read_tasks


def test_command_writes_tasks_that_read_back(model: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("alpha\nbeta\ngamma\n")
    (tmp_path / "noise").write_text("Nothing here.\nNor there.\n")
    out = tmp_path / "deep" / "niah.jsonl"
    arguments = ["--task", "niah", "--value-type", "words", "--value-words", str(tmp_path / "words"), "--num-k", "2"]
    arguments += ["--noise", str(tmp_path / "noise"), "--tokenizer", str(model), "--length", "600", "--count", "3"]
    assert main([*arguments, "--out", str(out)]) == 0
    tasks = read_tasks(out)
    assert [task.task_id for task in tasks] == [f"niah-600-test-42-{i}" for i in range(3)]
    for task in tasks:
        assert set(task.answers) <= {"alpha", "beta", "gamma"}
        assert "Nor there." in task.context
        assert 580 < task.metadata["length"] <= 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "niah_single_2", "--length", "900"], "--essays FOLDER"),
        (["--task", "vt", "--length", "900", "--num-k", "2"], "task vt has no option num_k"),
        (["--task", "hqa", "--num-docs", "9"], "needs the option `hotpotqa`"),
        (["--task", "hqa", "--num-docs", "9", "--split", "train"], "the questions of its file in every split"),
        (["--task", "niah", "--num-docs", "9"], "--num-docs: task niah has no documents"),
        (["--task", "niah", "--length", "20"], "over the limit of 20"),
        (["--task", "niah", "--length", "900", "--tokenizer", "/no/tokenizer"], "/no/tokenizer: no such folder"),
    ],
)
def test_command_says_what_is_wrong(
    arguments: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.jsonl"
    assert main(["--tokenizer", str(model), "--count", "1", "--out", str(out), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--count", "-2", "greater than 0 (is '-2')"),
        ("--length", "7Q", "length '7Q': not a number of tokens. Write 7168, 7K"),
        ("--num-docs", "0", "greater than 0 (is '0')"),
        ("--key-words", "nofile", "not point to a file (is 'nofile')"),
        ("--hotpotqa", "nofile", "not point to a file (is 'nofile')"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--task", "niah", "--tokenizer", "t", "--length", "7K", "--count", "1", "--out", "x", option, value])
    assert f"argument {option}: " in (error := capsys.readouterr().err)
    assert message in error


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=300),
    st.integers(0, 100),
    st.integers(1, 5),
    st.integers(10, 20_000),
)
def test_fit_is_within_the_limit_and_close(sizes: list[int], overhead: int, smallest: int, limit: int) -> None:
    def tokens(units: int) -> int:
        rounds, rest = divmod(units, len(sizes))
        return overhead + rounds * sum(sizes) + sum(sizes[:rest])

    if tokens(smallest) > limit:
        with pytest.raises(ValueError, match="over the limit"):
            fit_units(tokens, limit, smallest=smallest)
        return
    units, total = fit_units(tokens, limit, smallest=smallest)
    assert total == tokens(units) <= limit
    assert limit - total <= max(TOLERANCE * limit, 400)


def test_too_few_units_are_an_error_and_enough_are_not() -> None:
    with pytest.raises(ValueError, match="all 10 units together have 1000 tokens, too few for 2000"):
        fit_units(lambda n: 100 * n, 2000, largest=10)
    assert fit_units(lambda n: 100 * n, 1050, largest=10) == (10, 1000)
