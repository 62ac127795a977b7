"""One table of all published scores: each has our cell, a command that makes it, or says that there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.plan import EvaluationError
from benchmarks.table import command
from benchmarks.table.evaluations import Evaluation, Places, find_evaluation, find_lacking, list_published


def list_evaluations() -> list[Evaluation]:
    found = (find_evaluation(row, Places()) for row in list_published())
    return list(dict.fromkeys(evaluation for evaluation in found if evaluation is not None))


def test_every_evaluation_is_a_command_and_a_request_that_its_evaluator_reads() -> None:
    evaluations = list_evaluations()
    assert len(evaluations) == len({evaluation.name for evaluation in evaluations}) >= 19
    for evaluation in evaluations:
        evaluator = command.EVALUATORS[evaluation.benchmark]
        _, _, benchmark, *words = evaluation.command.split()
        assert benchmark == evaluation.benchmark
        typed = vars(evaluator.make_parser().parse_args(words))
        urls = dict.fromkeys(evaluation.models, "http://127.0.0.1:1")
        asked = vars(evaluator.read_request(evaluation.request(urls, "http://127.0.0.1:2")))
        addressed = {"policy_url": "http://127.0.0.1:1", "overrides": asked["overrides"]}
        as_lists = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
        assert {**typed, **addressed} == {name: as_lists[name] for name in typed}
        assert bool(asked["overrides"]) == (evaluation.benchmark not in ("ruler", "localize"))
    with pytest.raises(EvaluationError, match=r"no option colour; there are: .*concurrency, "):
        command.EVALUATORS["ruler"].run(model="m", colour="red")


def test_what_is_missing_is_told_with_the_way_to_get_it(tmp_path: Path) -> None:
    evaluation = next(each for each in list_evaluations() if "frames" in each.data)
    (tmp_path / "frames.jsonl").write_text("{}\n")
    evaluation = replace(evaluation, data=(*evaluation.data, "hle", "essays", "tau2"))
    told = "\n".join(find_lacking(evaluation, Places(data=tmp_path), retrieval=False))
    assert "frames.jsonl: missing" not in told
    assert "essays: missing. Get it: tokentrue data download essays" in told
    assert "TAU2_DATA: missing. Get it: see benchmarks/tau2/README.md" in told
    assert f"{tmp_path / 'hle.jsonl'}: missing. Get it: copy evaluation/hle.jsonl of NVlabs/ToolOrchestra" in told
    assert "retrieval service: tokentrue data download frames-corpus" in told
    assert "secrets/openai_api_key: the key of the models behind paid interfaces" in told
