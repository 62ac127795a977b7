"""This module writes published benchmarks as tasks for training and testing, in train.jsonl, eval.jsonl and test.jsonl.

| name | hub, at a pinned commit | train, eval | test |
|---|---|---|---|
| gsm8k | openai/gsm8k | its training set | its test set, 1,319 |
| math | EleutherAI/hendrycks_math; HuggingFaceH4/MATH-500 | MATH's training set | MATH-500 |
| gsm-hard | reasoning-machines/gsm-hard (not pinned) | none | all 1,319: GSM8K's test with large numbers |
| hotpotqa-tasks | hotpotqa/hotpot_qa, distractor | its training set | its dev set: its test has no answers |
| 2wiki | framolfese/2WikiMultihopQA | its training set | its dev set, as well |
| musique | dgslibisey/MuSiQue (not pinned), answerable | its training set | its dev set, as well |
| routellm | github.com/lm-sys/RouteLLM | the prompts of three quarters of the subjects | the other subjects |

Where a benchmark has no eval of its own, one of 16 training questions is kept for it: the first byte of the question's
sha256 decides, and likewise that of the subject's decides for routellm. core/data/splits.py says what is then dropped.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.ruler.documents import number_documents
from core.data.files import DataError, SourceLocation, read_records, write_jsonl
from core.data.git_files import check_out
from core.data.sets import GITHUB, fetch_hub_file, write_sha256
from core.data.splits import Split, draw_split, drop_overlaps, refuse_shown
from core.data.tasks import convert_records
from core.rewards.answers import find_box
from core.types import Task

Record = Mapping[str, Any]
Located = tuple[SourceLocation, Record]
Convert = Callable[[str, Iterable[Located], "Counter[str]"], Iterator[Task]]
"""Converts the records of a split, whose name begins the ids of tasks without one; the counter tells what it drops."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Describes where the published splits of a benchmark lie, and which of ours each becomes (None: left out).

    `hub` pairs a set of the hub, `owner/name:file` or `github.com/owner/name@commit` with its split. `files` maps the
    pattern of a file's name to its split; the field `split` of a record or `find_split` comes first. `choose` chooses
    among our splits where nothing is published.
    """

    hub: tuple[tuple[str, str], ...]
    files: Mapping[str, str]
    splits: Mapping[str, Split | None]
    convert: Convert
    rows: int
    find_split: Callable[[Record], str | None] = lambda record: record.get("split")
    choose: Callable[[Task], Split] | None = None


def prepare_benchmark(
    name: str,
    benchmark: Benchmark,
    out: Path,
    source: Path | None = None,
    *,
    few_shot: Path | None = None,
    resplit: bool = False,
) -> tuple[dict[Path, int], Counter[str]]:
    """Write `out`/`name`/{train,eval,test}.jsonl, as far as there are such tasks; return their counts and what to tell.

    `source` is a file, or a folder that is searched, instead of the hub. `few_shot` is a text that must hold nothing of
    eval and test. `resplit` divides all records by hash, also those of published splits.

    Raises:
        DataError: the hub is not reached, a record is wrong, a split is not known, or the few-shot text holds a task.
    """
    told: Counter[str] = Counter()
    splits: dict[Split, list[Task]] = {"train": [], "eval": [], "test": []}
    has_eval = "eval" in benchmark.splits.values()
    with TemporaryDirectory() as scratch:
        read = _read_hub(benchmark, Path(scratch)) if source is None else _read_files(name, benchmark, source)
        records = sorted(read, key=lambda item: item[0])
    if source is None and len(records) != benchmark.rows:
        raise DataError(
            f"{name}: the hub gave {len(records):,} records, {benchmark.rows:,} expected. Fix: clear its cache and "
            "download it again, or name files with --from, whose number is not checked."
        )
    for published, group in groupby(records, key=lambda item: item[0]):
        if (ours := benchmark.splits[published]) is None:
            told[f"left out: the published split {published}"] += sum(1 for _ in group)
            continue
        for task in benchmark.convert(f"{name}-{published}", (located for _, located in group), told):
            split: Split = ours
            if benchmark.choose:
                split = benchmark.choose(task)
            if resplit or (split == "train" and not has_eval and draw_split(task.question) == "eval"):
                split = draw_split(task.question)
            splits[split].append(task)
    splits = drop_overlaps(splits, told)
    if few_shot is not None:
        refuse_shown(splits["eval"] + splits["test"], few_shot)
    written = {}
    for split, tasks in splits.items():
        if tasks:
            path = out / name / f"{split}.jsonl"
            written[path] = write_jsonl(path, tasks)
            write_sha256(path)
    return written, told


def describe_splits(benchmark: Benchmark, resplit: bool) -> str:
    """Say what divides the tasks."""
    if resplit:
        return "splits: the sha256 of the question gives 1 of 16 to eval and 2 to test, whatever is published"
    if "eval" in benchmark.splits.values() or "train" not in {benchmark.splits[split] for _, split in benchmark.hub}:
        own = "as published"
    else:
        own = "as published, less 1 of 16 training questions for eval, by the sha256 of the question"
    return f"splits: {own if benchmark.choose is None else choose_by_subject.__doc__}"


def _read_hub(benchmark: Benchmark, scratch: Path) -> Iterator[tuple[str, Located]]:
    for hub, published in benchmark.hub:
        if hub.startswith(GITHUB):
            repository, _, commit = hub.partition("@")
            try:
                check_out(f"https://{repository}", commit, benchmark.files, scratch)
            except RuntimeError as error:
                raise DataError(f"{hub}: cannot be fetched ({error}). Fix: clone it, and give --from FOLDER.") from None
            yield from _read_files(hub, benchmark, scratch)
            continue
        owner, _, file = hub.partition(":")
        is_file = file.endswith(".jsonl")
        for located in read_records(fetch_hub_file(owner, file) if is_file else hub):
            yield benchmark.find_split(located[1]) or published, located


def _read_files(name: str, benchmark: Benchmark, source: Path) -> Iterator[tuple[str, Located]]:
    """Yield the records of a file or folder with their published splits."""
    if source.is_dir():
        files = sorted(path for pattern in benchmark.files for path in source.rglob(pattern.rpartition("/")[2]))
        if not files:
            raise DataError(f"{source}: has no file named {', '.join(benchmark.files)}. Fix: give the file of {name}.")
    else:
        files = [source]
    only = {published for _, published in benchmark.hub}
    for path in files:
        named = (split for pattern, split in benchmark.files.items() if fnmatch(path.name, pattern.rpartition("/")[2]))
        by_name = next(named, min(only) if len(only) == 1 else None)
        for location, record in read_records(path):
            published = benchmark.find_split(record) or by_name
            if published not in benchmark.splits:
                known = ", ".join(benchmark.splits)
                fix = f"write one of {known}, or name the file so: {', '.join(benchmark.files)}"
                raise location.error("split", f"is {published!r}", fix)
            yield str(published), (location, record)


def rename(**names: str) -> Convert:
    """Return a conversion for which some fields of a record have other names."""

    def convert(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
        renamed = (
            (where, {names.get(name, name): value for name, value in record.items()}) for where, record in records
        )
        return convert_records(renamed, prefix, require_context=False)

    return convert


def convert_math(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
    """Convert problems of MATH: the answer is the last box of the solution, where no field holds it."""

    def read(location: SourceLocation, record: Record) -> Located:
        answer = record.get("answer") or find_box(str(record.get("solution")))
        if answer is None:
            raise location.error("solution", "has no box", "is this the published data set?")
        kind = record.get("type") or record.get("subject")
        question = record.get("problem") or record.get("question")
        metadata = {"kind": kind, "level": record.get("level")}
        return location, {"question": question, "answer": answer, "metadata": {k: v for k, v in metadata.items() if v}}

    return convert_records((read(*located) for located in records), prefix, require_context=False, short_answers=False)


def convert_multihop(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
    """Convert questions over paragraphs. `metadata.needles` are the gold paragraphs with their supporting sentences."""
    for number, (location, record) in enumerate(records):
        paragraphs, gold = _read_paragraphs(location, record)
        if not gold or None in gold or False in (record.get("answerable"), record.get("gold_present")):
            told["left out: a question without its gold paragraphs, which cannot be answered"] += 1
            continue
        needles = []
        for place, chosen in gold.items():
            title, sentences = paragraphs[place or 0]
            found = [sentence for n, sentence in enumerate(sentences) if n in chosen]
            needles.append({"key": title, "value": _join(found or sentences)})
        answers = (record["answer"], *(record.get("answers") or ()), *(record.get("answer_aliases") or ()))
        documents = [f"{title}\n{_join(sentences)}" for title, sentences in paragraphs]
        yield Task(
            task_id=str(record.get("id") or record.get("_id") or f"{prefix}-{number}"),
            question=record["question"],
            answers=tuple(dict.fromkeys(answers)),
            context=number_documents(documents)[0],
            metadata={
                "kind": record.get("type") or str(record.get("id")).partition("__")[0],
                "paragraphs": [{"title": title, "sentences": list(texts)} for title, texts in paragraphs],
                "needles": needles,
            },
        )


def _join(sentences: Iterable[str]) -> str:
    return " ".join(sentence.strip() for sentence in sentences)


def _read_paragraphs(
    location: SourceLocation, record: Record
) -> tuple[list[tuple[str, list[str]]], dict[int | None, list[int]]]:
    """Return (title, sentences) of all paragraphs, and the gold ones: place -> sentences; None is one that is absent.

    HotpotQA's JSON has pairs and the hub's has columns. MuSiQue marks whole paragraphs; two may have one title.
    """
    context: Any = record.get("context")
    facts = record.get("supporting_facts") or record.get("supporting") or []
    if isinstance(facts, Mapping):
        facts = list(zip(facts["title"], facts["sent_id"], strict=True))
    if isinstance(context, Mapping):
        context = list(zip(context["title"], context["sentences"], strict=True))
    listed = record.get("paragraphs") or []
    if not context and not listed:
        raise location.error("context", "has no paragraphs", "use the files with paragraphs (HotpotQA: distractor)")
    paragraphs = [(each["title"], each.get("sentences") or [each["paragraph_text"]]) for each in listed]
    paragraphs = paragraphs or [(title, sentences) for title, sentences in context]
    marked = [place for place, each in enumerate(listed) if each.get("is_supporting")]
    marked = marked or [step["paragraph_support_idx"] for step in record.get("decomposition") or ()]
    if marked:
        return paragraphs, {place: [0] for place in marked}
    places, gold = {title: place for place, (title, _) in enumerate(paragraphs)}, dict[int | None, list[int]]()
    for title, sentence in facts:
        gold.setdefault(places.get(title), []).append(sentence)
    return paragraphs, gold


ROUTELLM_BROKEN = "mmlu_high_school_mathematics"
"""Names a subject in which the published data has GPT-4 right in 3 % of 270 prompts, and Mixtral in 32 %."""
WEAK, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"


def convert_routellm(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
    """Convert prompts with the right and wrong answers of a weak and a strong model.

    The answer is the route that an oracle takes: the weak model, unless the strong one alone is right.
    """
    for number, (location, record) in enumerate(records):
        subject = record.get("set") or location.path.stem.removesuffix("_responses")
        if subject == ROUTELLM_BROKEN:
            told[f"left out: {subject}, whose answers of GPT-4 are broken in the published data"] += 1
            continue
        right = {
            role: str(record[role] if role in record else record.get(model)) == "True"
            for role, model in (("weak", WEAK), ("strong", STRONG))
        }
        yield Task(
            task_id=f"{prefix}-{number}",
            question=record["prompt"],
            answers=("strong" if right["strong"] and not right["weak"] else "weak",),
            metadata={"kind": subject, **right},
        )


def choose_by_subject(task: Task) -> Split:
    """Keep a quarter of the subjects out of training: those whose name's sha256 begins with a byte that 4 divides."""
    return "train" if hashlib.sha256(task.metadata["kind"].encode()).digest()[0] % 4 else "test"


TRAIN_TEST: Mapping[str, Split | None] = {"train": "train", "test": "test"}
TRAIN_DEV: Mapping[str, Split | None] = {"train": "train", "dev": "test", "validation": "test"}
DEV_FILES = {"*train*": "train", "*dev*": "dev", "*validation*": "dev"}
MATH = "EleutherAI/hendrycks_math@21a5633873b6a120296cce3e2df9d5550074f4a3"
MATH_SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip
GSM8K = "openai/gsm8k@e53f048856ff4f594e959d75785d2c2d37b678ee:main"
HOTPOTQA = "hotpotqa/hotpot_qa@1908d6afbbead072334abe2965f91bd2709910ab:distractor"
WIKI2 = "framolfese/2WikiMultihopQA@fe713bfbd1afbca1a65246741a75890405d56a3a"

BENCHMARKS = {
    "gsm8k": Benchmark(
        ((f"{GSM8K}:train", "train"), (f"{GSM8K}:test", "test")),
        {"*train*": "train", "*test*": "test"},
        TRAIN_TEST,
        rename(),
        8792,
    ),
    "math": Benchmark(
        (
            *((f"{MATH}:{subject}:train", "train") for subject in MATH_SUBJECTS),
            ("HuggingFaceH4/MATH-500@6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be:test", "test"),
        ),
        {"math_train*": "train", "train*": "train", "math_500*": "test", "test*": "test"},
        TRAIN_TEST,
        convert_math,
        8000,
    ),
    "gsm-hard": Benchmark(
        (("reasoning-machines/gsm-hard:train", "test"),),
        {"gsm*hard*": "test"},
        TRAIN_TEST,
        rename(input="question", target="answer"),
        1319,
    ),
    "hotpotqa-tasks": Benchmark(
        ((f"{HOTPOTQA}:train", "train"), (f"{HOTPOTQA}:validation", "dev")),
        DEV_FILES,
        TRAIN_DEV,
        convert_multihop,
        97852,
    ),
    "2wiki": Benchmark(
        ((f"{WIKI2}:train", "train"), (f"{WIKI2}:validation", "dev")), DEV_FILES, TRAIN_DEV, convert_multihop, 180030
    ),
    "musique": Benchmark(
        (("dgslibisey/MuSiQue:train", "train"), ("dgslibisey/MuSiQue:validation", "dev")),
        DEV_FILES,
        TRAIN_DEV,
        convert_multihop,
        22355,
    ),
    "routellm": Benchmark(
        ((f"{GITHUB}lm-sys/RouteLLM@0b64fdafe049e596a3f5657c219329f24af24198", "test"),),
        {
            "routellm/evals/mmlu/responses/mmlu_*.csv": "test",
            "routellm/evals/gsm8k/gsm8k_responses.csv": "test",
            "routellm*.jsonl": "test",
        },
        TRAIN_TEST,
        convert_routellm,
        15361,
        choose=choose_by_subject,
    ),
}
