"""This module reads published benchmarks as tasks for training and testing, in the splits train, eval and test.

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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.data.git_files import check_out
from benchmarks.data.prepare import GITHUB, fetch_hub_file
from benchmarks.ruler.documents import number_documents
from core.data.files import DataError, SourceLocation, read_records
from core.data.splits import Split, draw_place, draw_split, drop_overlaps
from core.data.tasks import convert_records
from core.rewards.answers import find_box
from core.types import Task

Record = Mapping[str, Any]
Located = tuple[SourceLocation, Record]
Paragraphs = list[tuple[str, list[str]]]
Convert = Callable[[str, Iterable[Located], "Counter[str]"], Iterator[Task]]
"""Converts the records of a split, whose name begins the ids of tasks without one; the counter tells what it drops."""


class PublishedRecord(dict[str, Any]):
    """Holds a record; to ask for a field that it has not raises a DataError with its place."""

    def __init__(self, location: SourceLocation, record: Record):
        super().__init__(record)
        self.location = location

    def __missing__(self, name: str) -> Any:
        raise self.location.error(name, "is missing", "is this the published data set?")


AS_PUBLISHED = "as published; without an eval, 1 of 16 training questions, chosen by the sha256 of the question"
BY_SUBJECT = "a quarter of the subjects is test, by the sha256 of their names; of the other prompts 1 of 16 is eval"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Describes where the published splits of a benchmark lie, and which of ours each becomes (None: left out).

    `hub` pairs a set of the hub, `owner/name:file` or `github.com/owner/name@commit` with its split. `files` maps the
    pattern of a file's name to its split; the field `split` of a record or `find_split` comes first. `choose` chooses
    among our splits where nothing is published; `rule` says what divides the tasks.
    """

    hub: tuple[tuple[str, str], ...]
    files: Mapping[str, str]
    splits: Mapping[str, Split | None]
    convert: Convert
    rows: int
    find_split: Callable[[Record], str | None] = lambda record: record.get("split")
    choose: Callable[[Task], Split] | None = None
    rule: str = AS_PUBLISHED


def read_benchmark(
    name: str, benchmark: Benchmark, source: Path | None = None
) -> tuple[dict[Split, list[Task]], Counter[str]]:
    """Return the tasks of each split, and the counts of what is dropped.

    `source` is a file, or a folder that is searched, instead of the hub.

    Raises:
        DataError: the hub is not reached, a record is wrong, or its split is not known.
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
        located = ((location, PublishedRecord(location, record)) for _, (location, record) in group)
        for task in benchmark.convert(f"{name}-{published}", located, told):
            split: Split = benchmark.choose(task) if benchmark.choose else ours
            if split == "train" and not has_eval and draw_split(task.question) == "eval":
                split = "eval"
            splits[split].append(task)
    return drop_overlaps(splits, told), told


def _read_hub(benchmark: Benchmark, scratch: Path) -> Iterator[tuple[str, Located]]:
    for hub, published in benchmark.hub:
        if hub.startswith(GITHUB):
            repository, _, commit = hub.partition("@")
            check_out(f"https://{repository}", commit, benchmark.files, scratch)
            yield from _read_files(hub, benchmark, scratch)
            continue
        owner, _, file = hub.partition(":")
        for located in read_records(fetch_hub_file(owner, file) if file.endswith(".jsonl") else hub):
            yield published, located


def _read_files(name: str, benchmark: Benchmark, source: Path) -> Iterator[tuple[str, Located]]:
    """Yield the records of a file or folder with their published splits."""
    names = {pattern.rpartition("/")[2]: split for pattern, split in benchmark.files.items()}
    files = sorted({path for pattern in names for path in source.rglob(pattern)}) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source}: has no file named {', '.join(names)}. Fix: give the file of {name}.")
    only = {published for _, published in benchmark.hub}
    for path in files:
        named = (split for pattern, split in names.items() if fnmatch(path.name, pattern))
        by_name = next(named, min(only) if len(only) == 1 else None)
        for location, record in read_records(path):
            published = benchmark.find_split(record) or by_name
            if published not in benchmark.splits:
                fix = f"write one of {', '.join(benchmark.splits)}, or name the file so: {', '.join(names)}"
                raise location.error("split", f"is {published!r}", fix)
            yield str(published), (location, record)


def convert_questions(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
    """Convert problems of GSM8K, GSM-Hard and MATH, whose answer is the last box of the solution."""

    def read(location: SourceLocation, record: Record) -> Located:
        question = next((record[name] for name in ("question", "problem", "input") if name in record), None)
        answer = next((record[name] for name in ("answer", "target") if name in record), None)
        if answer is None and (answer := find_box(str(record.get("solution")))) is None:
            raise location.error("solution", "has no box", "is this the published data set?")
        kind = {"kind": record.get("type") or record.get("subject"), "level": record.get("level")}
        # GSM8K's answers are solutions, whose annotated computations agentic/retool/gsm8k.py makes programs of.
        kind["solution"] = answer if "<<" in str(answer) else None
        metadata = {name: value for name, value in kind.items() if value}
        return location, {"id": record.get("id"), "question": question, "answer": answer, "metadata": metadata}

    read_all = (read(*located) for located in records)
    return convert_records(read_all, prefix, require_context=False, short_answers=False)


def convert_multihop(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
    """Convert questions over paragraphs. `metadata.needles` are their supporting sentences, behind the titles."""
    for number, (location, record) in enumerate(records):
        paragraphs = read_paragraphs(location, record)
        gold = _find_gold(record, paragraphs)
        if not gold or None in gold or False in (record.get("answerable"), record.get("gold_present")):
            told["left out: a question without its gold paragraphs, which cannot be answered"] += 1
            continue
        needles = []
        for place, chosen in gold.items():
            title, sentences = paragraphs[place or 0]
            found = [sentence for n, sentence in enumerate(sentences) if n in chosen]
            needles += [{"key": title, "value": sentence.strip()} for sentence in found or sentences]
        answers = (record["answer"], *(record.get("answers") or ()), *(record.get("answer_aliases") or ()))
        task_id = str(record.get("id") or record.get("_id") or f"{prefix}-{number}")
        metadata = {
            "kind": record.get("type") or task_id.partition("__")[0],
            "paragraphs": [{"title": title, "sentences": list(texts)} for title, texts in paragraphs],
            "needles": needles,
        }
        context, _ = number_documents([f"{title}\n{join_sentences(sentences)}" for title, sentences in paragraphs])
        yield Task(task_id, record["question"], tuple(dict.fromkeys(answers)), context, metadata)


def join_sentences(sentences: Iterable[str]) -> str:
    return " ".join(sentence.strip() for sentence in sentences)


def read_paragraphs(location: SourceLocation, record: Record) -> Paragraphs:
    """Return (title, sentences) of all paragraphs. HotpotQA's JSON has pairs, the hub's columns, MuSiQue a list."""
    if listed := record.get("paragraphs"):
        return [(each["title"], each.get("sentences") or [each["paragraph_text"]]) for each in listed]
    context: Any = record.get("context")
    if isinstance(context, Mapping) and {"title", "sentences"} <= context.keys():
        return list(zip(context["title"], context["sentences"], strict=True))
    if isinstance(context, list) and context and all(isinstance(pair, list) and len(pair) == 2 for pair in context):
        return [(title, sentences) for title, sentences in context]
    raise location.error("context", "has no paragraphs", "use the files with paragraphs (HotpotQA: distractor)")


def read_facts(record: Record) -> dict[str, list[int]]:
    """Return the numbers of the supporting sentences, by the titles of their paragraphs."""
    facts: Any = record.get("supporting_facts") or record.get("supporting") or ()
    if isinstance(facts, Mapping):
        facts = zip(facts["title"], facts["sent_id"], strict=True)
    found: dict[str, list[int]] = {}
    for title, number in facts:
        found.setdefault(title, []).append(number)
    return found


def _find_gold(record: Record, paragraphs: Paragraphs) -> dict[int | None, list[int]]:
    """Map the places of the gold paragraphs to their sentences; None stands for any that is absent.

    MuSiQue marks whole paragraphs; two may have one title.
    """
    marked = [place for place, each in enumerate(record.get("paragraphs") or ()) if each.get("is_supporting")]
    if marked := marked or [step["paragraph_support_idx"] for step in record.get("decomposition") or ()]:
        return {place: [0] for place in marked}
    places = {title: place for place, (title, _) in enumerate(paragraphs)}
    return {places.get(title): numbers for title, numbers in read_facts(record).items()}


ROUTELLM_BROKEN = "mmlu_high_school_mathematics"
"""Names a subject in which the published data has GPT-4 right in 3 % of 270 prompts, and Mixtral in 32 %."""
ROLES = (("weak", "mistralai/Mixtral-8x7B-Instruct-v0.1"), ("strong", "gpt-4-1106-preview"))


def convert_routellm(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
    """Convert prompts with the right and wrong answers of a weak and a strong model.

    The answer is the route that an oracle takes: the weak model, unless the strong one alone is right.
    """
    for number, (location, record) in enumerate(records):
        subject = record.get("set") or location.path.stem.removesuffix("_responses")
        if subject == ROUTELLM_BROKEN:
            told[f"left out: {subject}, whose answers of GPT-4 are broken in the published data"] += 1
            continue
        weak, strong = (str(record[role] if role in record else record[model]) == "True" for role, model in ROLES)
        answer = "strong" if strong and not weak else "weak"
        metadata = {"kind": subject, "weak": weak, "strong": strong}
        yield Task(f"{prefix}-{number}", record["prompt"], (answer,), metadata=metadata)


def choose_by_subject(task: Task) -> Split:
    """Keep a quarter of the subjects out of training: those whose name's sha256 begins with a byte that 4 divides."""
    return "train" if draw_place(task.metadata["kind"], 4) else "test"


TRAIN_TEST: Mapping[str, Split | None] = {"train": "train", "test": "test"}
TRAIN_DEV: Mapping[str, Split | None] = {"train": "train", "dev": "test"}
DEV_FILES = {"*train*": "train", "*dev*": "dev", "*validation*": "dev"}
ROUTELLM_FILES = {
    "routellm/evals/mmlu/responses/mmlu_*.csv": "test", "routellm/evals/gsm8k/gsm8k_responses.csv": "test",
    "routellm*.jsonl": "test",
}  # fmt: skip
MATH = "EleutherAI/hendrycks_math@21a5633873b6a120296cce3e2df9d5550074f4a3"
MATH_500 = "HuggingFaceH4/MATH-500@6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
MATH_SUBJECTS = "algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra precalculus"
GSM8K = "openai/gsm8k@e53f048856ff4f594e959d75785d2c2d37b678ee:main"
HOTPOTQA = "hotpotqa/hotpot_qa@1908d6afbbead072334abe2965f91bd2709910ab:distractor"
WIKI2 = "framolfese/2WikiMultihopQA@fe713bfbd1afbca1a65246741a75890405d56a3a"
MUSIQUE = "dgslibisey/MuSiQue"


def _hub(name: str, **splits: str) -> tuple[tuple[str, str], ...]:
    """Pair the hub's splits of one set with what they are published as."""
    return tuple((f"{name}:{split}", published) for split, published in splits.items())


_DEV = {"train": "train", "validation": "dev"}
_MATH = tuple((f"{MATH}:{subject}:train", "train") for subject in MATH_SUBJECTS.split())
BENCHMARKS = {
    "gsm8k": Benchmark(_hub(GSM8K, train="train", test="test"), {"*train*": "train", "*test*": "test"}, TRAIN_TEST,
                       convert_questions, 8792),
    "math": Benchmark((*_MATH, *_hub(MATH_500, test="test")),
                      {"math_train*": "train", "train*": "train", "math_500*": "test", "test*": "test"}, TRAIN_TEST,
                      convert_questions, 8000),
    "gsm-hard": Benchmark(_hub("reasoning-machines/gsm-hard", train="test"), {"gsm*hard*": "test"}, TRAIN_TEST,
                          convert_questions, 1319),
    "hotpotqa-tasks": Benchmark(_hub(HOTPOTQA, **_DEV), DEV_FILES, TRAIN_DEV, convert_multihop, 97852),
    "2wiki": Benchmark(_hub(WIKI2, **_DEV), DEV_FILES, TRAIN_DEV, convert_multihop, 180030),
    "musique": Benchmark(_hub(MUSIQUE, **_DEV), DEV_FILES, TRAIN_DEV, convert_multihop, 22355),
    "routellm": Benchmark(((f"{GITHUB}lm-sys/RouteLLM@0b64fdafe049e596a3f5657c219329f24af24198", "test"),),
                          ROUTELLM_FILES, TRAIN_TEST, convert_routellm, 15361, choose=choose_by_subject,
                          rule=BY_SUBJECT),
}  # fmt: skip
