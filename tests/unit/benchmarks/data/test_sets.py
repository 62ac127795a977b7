"""Benchmarks become tasks of three splits, from the hub at a pinned commit or from files in their published forms."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import passages, sets
from benchmarks.data.sets import BENCHMARKS, ROUTELLM_BROKEN, convert_multihop, convert_routellm, read_benchmark
from core.data import read_tasks
from core.data.files import DataError, SourceLocation
from core.types import Task
from scripts import download_data

Rows = list[dict[str, Any]]
PLACE = SourceLocation(Path("x.jsonl"), 1, "line")


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _read(name: str, source: Path) -> tuple[dict[str, list[Task]], Counter[str]]:
    splits, told = read_benchmark(name, BENCHMARKS[name], source)
    return {split: tasks for split, tasks in splits.items() if tasks}, told


def _gsm8k(split: str, count: int) -> Rows:
    return [{"question": f"{split} {n}: {n} + 1?", "answer": f"{n} + 1\n#### {n + 1}"} for n in range(count)]


def test_gsm8k_keeps_its_test_set_and_gives_one_of_16_to_eval(tmp_path: Path) -> None:
    _write(tmp_path / "gsm8k_train.jsonl", _gsm8k("train", 160))
    _write(tmp_path / "gsm8k_test.jsonl", [*_gsm8k("test", 20), _gsm8k("train", 1)[0]])
    tasks, told = _read("gsm8k", tmp_path)
    assert len(tasks["test"]) == 21
    assert 3 < len(tasks["eval"]) < 20
    assert len(tasks["train"]) + len(tasks["eval"]) == 159  # one is a question of the test set
    assert list(told.values()) == [1]
    assert tasks["test"][3].answers == ("4",)


def test_a_file_whose_split_nothing_tells_is_refused(tmp_path: Path) -> None:
    source = _write(tmp_path / "records.jsonl", _gsm8k("x", 1))
    with pytest.raises(DataError, match=r"records\.jsonl:1: field 'split': is None.*\*train\*, \*test\*"):
        _read("gsm8k", source)
    with pytest.raises(DataError, match=r"has no file named \*train\*, \*test\*"):
        _read("gsm8k", tmp_path)


def test_math_answers_are_the_last_box(tmp_path: Path) -> None:
    raw = {"problem": "Find $x$.", "level": "Level 2", "type": "Algebra", "solution": "So $x=\\boxed{\\frac{1}{2}}$."}
    _write(tmp_path / "train.jsonl", [raw])
    _write(tmp_path / "math_500.jsonl", [{"problem": "Find $y$.", "answer": "(3, -1)", "subject": "Geometry"}])
    tasks, _ = _read("math", tmp_path)
    (trained,) = [*tasks.get("train", []), *tasks.get("eval", [])]
    assert (trained.question, trained.answers, trained.metadata["kind"]) == ("Find $x$.", ("\\frac{1}{2}",), "Algebra")
    assert (tasks["test"][0].answers, tasks["test"][0].metadata["kind"]) == (("(3, -1)",), "Geometry")
    _write(tmp_path / "train.jsonl", [{**raw, "solution": "no box"}])
    with pytest.raises(DataError, match=r"field 'solution': has no box"):
        _read("math", tmp_path)


def test_gsm_hard_is_all_test(tmp_path: Path) -> None:
    tasks, _ = _read("gsm-hard", _write(tmp_path / "v2.jsonl", [{"input": "How many?", "target": -9867630.0}]))
    assert [(split, [task.answers for task in read]) for split, read in tasks.items()] == [("test", [("-9867630",)])]


HOTPOT: dict[str, Any] = {
    "_id": "h", "question": "Whose wife?", "answer": "Ann", "type": "bridge",
    "supporting_facts": [["B", 2], ["B", 0], ["A", 0]],
    "context": [["A", ["A one.", " A two."]], ["C", ["C one."]], ["B", ["B one.", " B two.", " B three."]]],
}  # fmt: skip
COLUMNS = {
    **HOTPOT, "supporting_facts": {"title": ["B", "B", "A"], "sent_id": [2, 0, 0]},
    "context": dict(zip(("title", "sentences"), zip(*HOTPOT["context"], strict=True), strict=True)),
}  # fmt: skip
LISTED = {
    "id": "h", "question": "Whose wife?", "answer": "Ann", "answers": ["Ann"], "type": "bridge", "split": "dev",
    "supporting": HOTPOT["supporting_facts"],
    "paragraphs": [{"title": title, "sentences": texts} for title, texts in HOTPOT["context"]],
}  # fmt: skip


@pytest.mark.parametrize("record", [HOTPOT, COLUMNS, LISTED])
def test_multihop_records_of_any_form_are_the_same_task(record: dict[str, Any]) -> None:
    (task,) = convert_multihop("p", [(PLACE, record)], Counter())
    assert (task.task_id, task.answers, task.metadata["kind"]) == ("h", ("Ann",), "bridge")
    texts = ("A\nA one. A two.", "C\nC one.", "B\nB one. B two. B three.")
    assert task.context == "\n\n".join(f"Document {n}:\n{text}" for n, text in enumerate(texts, 1))
    needles = [("B", "B one."), ("B", "B three."), ("A", "A one.")]  # each stands in the document
    assert task.metadata["needles"] == [{"key": key, "value": value} for key, value in needles]
    assert [paragraph["title"] for paragraph in task.metadata["paragraphs"]] == ["A", "C", "B"]


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    source = _write(tmp_path / "x.jsonl", [{name: value for name, value in LISTED.items() if name != "answer"}])
    with pytest.raises(DataError, match=r"x\.jsonl:1: field 'answer': is missing"):
        _read("2wiki", source)


def test_musique_tells_two_paragraphs_of_one_title_apart() -> None:
    texts = ("About food.", "About kings.")
    record = {
        "id": "2hop__1_2", "question": "Who?", "answer": "Louis", "answer_aliases": ["Louis XIV"], "answerable": True,
        "paragraphs": [{"title": "France", "paragraph_text": text, "is_supporting": "k" in text} for text in texts],
    }  # fmt: skip
    (task,) = convert_multihop("p", [(PLACE, record)], Counter())
    assert (task.answers, task.metadata["kind"]) == (("Louis", "Louis XIV"), "2hop")
    assert task.metadata["needles"] == [{"key": "France", "value": "About kings."}]


@pytest.mark.parametrize("change", [{"answerable": False}, {"supporting": [["Z", 0]]}, {"gold_present": False}])
def test_a_question_without_its_gold_paragraphs_is_left_out_and_counted(change: dict[str, Any]) -> None:
    told: Counter[str] = Counter()
    assert list(convert_multihop("p", [(PLACE, {**LISTED, **change})], told)) == []
    assert told.total() == 1


def test_routellm_is_read_in_both_forms_and_keeps_subjects_whole(tmp_path: Path) -> None:
    head = f"prompt,{','.join(model for _, model in sets.ROLES)}\n"
    for subject in ("mmlu_anatomy", ROUTELLM_BROKEN):
        (tmp_path / f"{subject}.csv").write_text(f"{head}{subject}?,False,True\nTwo of {subject}?,True,True\n")
    tasks, told = _read("routellm", tmp_path)
    (found,) = tasks.values()  # a subject lies in one split
    assert (found[0].question, found[0].answers) == ("mmlu_anatomy?", ("strong",))
    assert found[1].metadata == {"kind": "mmlu_anatomy", "weak": True, "strong": True}
    assert told == {f"left out: {ROUTELLM_BROKEN}, whose answers of GPT-4 are broken in the published data": 2}
    ours = {"set": "mmlu_anatomy", "prompt": "Both wrong?", "weak": False, "strong": False}
    (task,) = convert_routellm("p", [(PLACE, ours)], Counter())
    assert (task.answers, task.metadata["weak"], task.metadata["strong"]) == (("weak",), False, False)
    subjects = (Task("t", "q", ("weak",), metadata={"kind": f"mmlu_{n}"}) for n in range(400))
    assert Counter(map(sets.choose_by_subject, subjects))["test"] == pytest.approx(100, abs=25)


def test_the_hub_is_asked_for_pinned_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(hub: str, config: str | None, *, split: str, revision: str | None) -> Rows:
        asked.append((hub, config, split, revision))
        return _gsm8k(split, 7473 if split == "train" else 1319)

    def dataset_info(self: object, hub: str, *, revision: str | None, timeout: float) -> None:
        asked.append((hub, revision))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    assert download_data.main(["gsm8k", "--out", str(tmp_path)]) == 0
    pin = "e53f048856ff4f594e959d75785d2c2d37b678ee"
    pairs = [[("openai/gsm8k", pin), ("openai/gsm8k", "main", split, pin)] for split in ("train", "test")]
    assert asked == pairs[0] + pairs[1]
    assert len(read_tasks(tmp_path / "gsm8k/test.jsonl", require_context=False)) == 1319
    with pytest.raises(DataError, match="the hub gave 8,792 records, 9 expected"):
        read_benchmark("gsm8k", replace(BENCHMARKS["gsm8k"], rows=9))


def test_the_command_tells_counts_and_refuses_options_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, shown = _write(tmp_path / "gsm8k_test.jsonl", _gsm8k("test", 3)), tmp_path / "shown.txt"
    words = ["gsm8k", "--from", str(source), "--out", str(tmp_path)]
    assert download_data.main(words) == 0
    printed = capsys.readouterr().out
    assert "test.jsonl (3 tasks" in printed
    assert f"note: gsm8k: splits {sets.AS_PUBLISHED}" in printed
    assert (tmp_path / "gsm8k/test.jsonl.sha256").is_file()
    both = _write(tmp_path / "both" / "gsm8k_train.jsonl", _gsm8k("train", 3)).parent
    assert download_data.main(["gsm8k", "--from", str(both), "--out", str(tmp_path)]) == 0
    assert f"note: {tmp_path}/gsm8k/test.jsonl of an earlier call is deleted" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "gsm8k").glob("test*")] == []
    shown.write_text("Question: test 1: 1 + 1?")
    assert download_data.main([*words, "--few-shot", str(shown)]) == 1
    assert "shown.txt: holds or overlaps with 1 of the questions" in capsys.readouterr().err
    for wrong in (["aime24", "--few-shot", str(shown)], ["gsm8k", "--rows", "3"]):
        with pytest.raises(SystemExit):
            download_data.main(wrong)


def test_paragraphs_become_one_corpus_each_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [{"title": "A", "sentences": ["One. ", "Two."]}, {"title": "B", "sentences": ["Three."]}]
    rows = [{"task_id": "1", "metadata": {"paragraphs": part}} for part in (texts, texts[:1])]
    _write(tmp_path / "first" / "train.jsonl", rows)
    _write(tmp_path / "second" / "test.jsonl", rows[1:])
    out = tmp_path / "corpus.jsonl"
    assert passages.main([str(tmp_path / "first"), str(tmp_path / "second"), "--out", str(out)]) == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert found == [{"id": "0", "contents": "A\nOne. Two."}, {"id": "1", "contents": "B\nThree."}]
    _write(tmp_path / "third" / "test.jsonl", [{"task_id": "1", "question": "?"}])
    assert passages.main([str(tmp_path / "third"), "--out", str(out)]) == 1
    assert "metadata.paragraphs" in capsys.readouterr().err
