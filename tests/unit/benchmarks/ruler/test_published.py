"""MemAgent's own evaluation: which cells follow it, what the others do otherwise, and its files, cuts and averages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.rollout import SPEC
from benchmarks.harness.plan import EvaluationError
from benchmarks.ruler import evaluate as command
from benchmarks.ruler.eval_data import official_data
from benchmarks.ruler.evaluate import RulerPlan, average_tasks, save_averages
from benchmarks.ruler.published import AVERAGE, WINDOW
from benchmarks.ruler.tasks import TEN_TASKS
from benchmarks.ruler.variants import WHOLE_THE_ANSWER_IS, Window, make_reader
from core.data import DataError
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder
from core.text.tokenizer import TokenTemplate, encode_text
from core.types import Task

from ..conftest import make_result

INHERENT = [
    "failed tasks: score 0; published: left out",
    "memory: token ids; published: text without thoughts, encoded again in each turn",
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with MemAgent's files for 50 and 100 documents, of two questions each."""
    folder = tmp_path / "hotpotqa"
    folder.mkdir()
    for documents in (50, 100):
        records = [
            {"input": " Who? ", "answers": ["me"], "context": f"\nIt was {i}. ", "num_docs": documents, "index": 7 - i}
            for i in range(2)
        ]
        (folder / f"eval_{documents}.json").write_text(json.dumps(records))
    return folder


def prepare(model: Path, out: Path, *more: str) -> RulerPlan:
    variants = () if "--variants" in more else ("--variants", "trained")
    call = ["--model", str(model), "--out", str(out), "--seeds", "0", *variants, *more]
    return command.prepare(command.make_parser().parse_args(call))


def departures(plan: RulerPlan) -> list[str]:
    lines = [line for cell in plan.cells for line in cell.notes["departures"]]
    return list(dict.fromkeys([*plan.folder.published["departures"], *lines]))


def test_the_preset_published_on_its_own_files_departs_only_where_it_must(
    model: Path, tmp_path: Path, files: Path
) -> None:
    own = ["--preset", "published", "--data", str(files), "--published-as", "RL-MemoryAgent-7B"]
    plan = prepare(model, tmp_path / "out", *own)
    assert [(cell.data, cell.length, cell.n) for cell in plan.cells] == [("ruler-hqa", n, 128) for n in (50, 100)]
    notes = {(cell.notes["protocol"], cell.notes["published_as"]) for cell in plan.cells}
    assert notes == {("memagent recurrent", "RL-MemoryAgent-7B")}
    assert departures(plan) == INHERENT
    with pytest.raises(EvaluationError, match="published models: RL-MemoryAgent-14B, RL-MemoryAgent-7B"):
        prepare(model, tmp_path / "out", *own[:-1], "RL-MemAgent-7B")


def test_what_is_done_otherwise_is_listed_with_both_values(model: Path, tmp_path: Path, files: Path) -> None:
    own = ["--data", str(files), "--preset", "paper", "--tasks", "2", "--temperature", "1"]
    plan = prepare(model, tmp_path / "out", *own, "--set", "memagent.align=document")
    assert {cell.notes["protocol"] for cell in plan.cells} == {None}
    assert {*INHERENT, *departures(plan)} >= {
        "answer_format: boxed; published: the_answer_is",
        "align: document; published: none",
        "temperature: 1.0; published: 0.7",
        "tasks: 2; published: 128",
        *INHERENT,
    }
    assert not [line for line in departures(plan) if line.startswith(("chunk_tokens", "max_chunks", "top_p"))]


@pytest.mark.parametrize(
    ("window", "protocol"),
    [((), "memagent openai 120K"), (("990000", "10000"), "memagent openai 990K"), (("5000", "10000"), None)],
)
def test_whole_documents_have_the_budgets_of_the_published_baselines(
    model: Path, tmp_path: Path, files: Path, window: tuple[str, ...], protocol: str | None
) -> None:
    options = ["--preset", "published", "--data", str(files), "--variants", "full-context"]
    plan = prepare(model, tmp_path / "out", *options, *(("--window", *window) if window else ()))
    assert {cell.notes["protocol"] for cell in plan.cells} == {protocol}
    shorter = "tokens of a whole prompt: 5,000; published: 120,000"
    assert departures(plan)[0] == (INHERENT[0] if protocol else shorter)


def test_official_files_are_read_as_their_evaluation_reads_them(files: Path) -> None:
    data = official_data(files, "hqa")
    assert (data.name, data.lengths) == ("ruler-hqa", (50, 100))
    tasks = [(task.question, task.context) for task in data.tasks(50, 0, 2)]
    assert tasks == [("Who?", "It was 0."), ("Who?", "It was 1.")]
    before = data.settings_at(50)
    assert data.settings_at(100) != before
    (files / "eval_100.json").write_text("[]")
    assert data.settings_at(50) == before
    with pytest.raises(DataError, match=r"eval_50\.json: 2 questions, and 128 are wanted"):
        data.tasks(50, 0, 128)
    with pytest.raises(DataError, match=r"no eval_vt_N\.json for every length asked; there are: none"):
        official_data(files, "vt")
    with pytest.raises(DataError, match=r"there are: 50, 100"):
        official_data(files, "hqa", [200])


def test_a_long_prompt_loses_its_middle_as_in_the_released_evaluation(model: Path, tokenizer: Any) -> None:
    method = SPEC.load("published").memagent
    long, short = (Task(f"t{n}", "What is amber?", ("a",), "amber: harbor. " * n) for n in (40, 1))
    reader = make_reader("full-context", method, tokenizer, Window(61, 9))
    reader.prepare([long, short])
    message = WHOLE_THE_ANSWER_IS.replace("{problem}", long.question).replace("{section}", long.context)
    ids = encode_text(tokenizer, message)
    kept = ids[: 61 // 2] + ids[-61 // 2 :]  # utils/openai_api.py line 30
    template = TokenTemplate(tokenizer, "{message}", slots=("message",))
    assert reader.prompt(long) == template.render(message=kept)  # type: ignore[attr-defined]
    assert len(kept) == 61 < len(ids)
    assert reader.context([long]) == template.length + 61 + 9
    plain = make_reader("full-context", method, tokenizer)
    plain.prepare([short])
    wide = make_reader("full-context", method, tokenizer, WINDOW)
    wide.prepare([short])
    shown = [str(tokenizer.decode(r.prompt(short))) for r in (plain, wide)]  # type: ignore[attr-defined]
    assert shown[0] == shown[1]


def test_the_context_of_chunk_by_chunk_has_room_for_a_recalled_memory(tokenizer: Any) -> None:
    method = SPEC.load("published").memagent.model_copy(update={"recall": True, "max_memory_tokens": 64})
    task = Task("t", "What is amber?", ("a",), "amber: harbor. " * 40)
    reader = make_reader("trained", method, tokenizer)
    reader.prepare([task])
    (section, *_), _ = reader.sections(task)  # type: ignore[union-attr]
    problem, full = encode_text(tokenizer, task.question), (1,) * 64
    prompt = reader.update.render(problem=problem, section=section, memory=full, recalled=full)  # type: ignore[union-attr]
    assert reader.context([task]) >= len(prompt) + 64


def ten_results(n: int = 2) -> list[EvalResult]:
    """Return a result of each of the ten tasks; task i has the score i / 10 everywhere."""
    return [
        make_result(
            "trained",
            f"ruler-{task}",
            [i / 10] * n,
            length=8192,
            failures={"timeout": 1},
            settings={"data": {"task": task}},
            notes={"task_ids": [f"{task}-{j}" for j in range(n)], "protocol": "memagent recurrent"},
        )
        for i, task in enumerate(TEN_TASKS)
    ]


def test_the_average_is_the_mean_over_the_ten_tasks() -> None:
    results = ten_results()
    (average,) = average_tasks(results)
    assert (average.data, average.n, average.notes["protocol"]) == (AVERAGE, 20, "memagent recurrent")
    assert sum(average.scores["official"]) / average.n == pytest.approx(0.45)
    assert (average.failures, average.seconds) == ({"timeout": 10}, 10.0)
    assert list(average_tasks(results[:9])) == []
    assert list(average_tasks([*results[:9], ten_results(3)[9]])) == [], "tasks of different weight"
    (mixed,) = average_tasks([replace(results[0], notes={"task_ids": ["a", "b"], "protocol": None}), *results[1:]])
    assert mixed.notes["protocol"] is None


def test_an_average_follows_its_tasks(folder: RunFolder) -> None:
    """As when one task is sampled again (--retry-failed), or more of it, by a command that names this task alone."""
    results, other = ten_results(), replace(ten_results()[0], variant="untrained")
    for result in (*results, other):
        folder.save_evaluation(result)
    save_averages(folder, {result.data for result in results})

    def read_averages() -> list[float]:
        return [sum(r.scores["official"]) / r.n for r in folder.evaluations() if r.data == AVERAGE]

    assert read_averages() == [pytest.approx(0.45)]
    folder.save_evaluation(replace(results[0], scores={"official": [1.0, 1.0]}))
    save_averages(folder, {results[0].data})
    assert read_averages() == [pytest.approx(0.55)]
    folder.save_evaluation(ten_results(3)[0])
    save_averages(folder, {results[0].data})
    assert read_averages() == [], "its tasks have different numbers of samples now"


def test_an_average_of_other_tasks_has_another_name_and_stands_beside_nothing() -> None:
    changed = [replace(r, data=f"{r.data}{'' if 'fwe' in r.data else '+few-noise'}+align=none") for r in ten_results()]
    (average,) = average_tasks(changed)
    assert average.data == f"{AVERAGE}+few-noise+align=none"


def test_generated_questions_are_no_published_ones(model: Path, tmp_path: Path, shared_data: Path) -> None:
    questions = str(shared_data / "hotpotqa_dev_distractor_75.json")
    generated = ["--data", "hotpotqa", "--hotpotqa", questions, "--lengths", "448K"]
    plan = prepare(model, tmp_path / "out", "--preset", "published", *generated)
    assert {cell.notes["protocol"] for cell in plan.cells} == {None}
    assert "length: tokens of the document; published: documents" in departures(plan)
