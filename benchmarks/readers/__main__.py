"""Train readers on the same tasks side by side, read documents up to 256 times as long, and write the table.

    .venv/bin/python -m benchmarks.readers [--readers NAME ...] [--out runs/readers]

table.yaml names the readers, lengths and seeds. Each seed of a reader is warm-started on turns of right rollouts
(experts.py) and then trained by RL. Killed at any moment, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import yaml
from pydantic import PositiveInt

from benchmarks.harness.jobs import call, run_all, show_score, train
from benchmarks.harness.statistics import score_seeds
from benchmarks.readers.experts import WORLD
from benchmarks.readers.tasks import QUESTIONS, draw_task
from core.config import Section
from core.data.files import DataError, write_jsonl
from core.data.tasks import read_tasks
from core.options import show_errors
from core.report.table import markdown
from core.runs.evaluation import EvalResult
from core.runs.files import write_json, write_text
from core.runs.run_folder import RunFolder
from core.text.tokenizer import encode_text, load_tokenizer

POSITIONS = 262144
"""Bounds what the full context may hold; a rotary embedding has no parameters, so the start model is the same."""


class Length(Section):
    pages: PositiveInt
    tasks: PositiveInt
    variants: tuple[str, ...] = ("untrained", "trained")
    keys: Mapping[str, dict[str, Any]] = {}
    """Maps a method to keys of its recipe, which only evaluations of this length have."""


class Reader(Section):
    """Names a method, the keys of its recipe, and for which lengths it reads fewer tasks than others.

    `evaluation_kv_tokens` sizes its cache. A conversation that grows must stay in it, or each call computes all
    of it again.
    """

    method: str
    keys: dict[str, Any]
    tasks: Mapping[str, PositiveInt] = {}
    evaluation_kv_tokens: PositiveInt = 330000


class ReadingPlan(Section):
    """Holds table.yaml. `lengths` are named by how many times as long as in training the documents are."""

    seeds: list[int]
    lengths: dict[str, Length]
    keys: dict[str, Any]
    readers: dict[str, Reader]


@show_errors(DataError)
def main(arguments: Sequence[str] | None = None) -> int:
    plan = read_plan()
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers", description=about)
    parser.add_argument("--readers", nargs="+", choices=plan.readers, default=list(plan.readers))
    parser.add_argument("--out", type=Path, default=Path("runs/readers"), help="folder of the runs (%(default)s)")
    options = parser.parse_args(arguments)
    write_world(plan, options.out)
    runs = [(name, seed) for seed in plan.seeds for name in options.readers]
    run_all(partial(train_reader, plan, name, seed, options.out) for name, seed in runs)
    for length in plan.lengths:
        run_all(partial(evaluate_reader, plan, name, seed, length, options.out) for name, seed in runs)
    text = write_table(plan, options.out)
    write_text(options.out / "table.md", text)
    print(text)
    return 0


def read_plan() -> ReadingPlan:
    text = Path(__file__).with_name("table.yaml").read_text(encoding="utf-8")
    return ReadingPlan.model_validate(yaml.safe_load(text))


def write_world(plan: ReadingPlan, out: Path) -> None:
    """Write the start model and the tasks of all readers, a quarter of each kind.

    Raises:
        DataError: tasks are there that another table.yaml has made; what was trained and read before rests on them.
    """
    train_pages = next(iter(plan.lengths.values())).pages
    files = {"train": (train_pages, 4096), "dev": (train_pages, 64)}
    files |= {length: (about.pages, about.tasks) for length, about in plan.lengths.items()}
    for name, (pages, count) in files.items():
        if (path := out / f"{name}.jsonl").exists():
            tasks = read_tasks(path)
            if (pages, count) != (tasks[0].context.count("\n\n") + 1, len(tasks)):
                raise DataError(f"{path}: is not {count} tasks of {pages} pages. Fix: give another folder with --out.")
            continue
        kinds, rng = [*QUESTIONS], Random(name)
        tasks = [draw_task(kinds[i % len(kinds)], pages, rng, f"{name}-{i:04d}") for i in range(count)]
        write_jsonl(path, tasks)
    if not (out / "model").exists():
        part = out / "model.part"
        config = WORLD.build_model(part) / "config.json"
        write_json(config, {**json.loads(config.read_text()), "max_position_embeddings": POSITIONS})
        part.rename(out / "model")


def train_reader(plan: ReadingPlan, name: str, seed: int, out: Path) -> None:
    reader = plan.readers[name]
    keys = json.loads(json.dumps({**plan.keys, **reader.keys}).replace("{out}", str(out)))
    train(reader.method, "tiny", out / name / f"{seed}", {**keys, "warm_start.seed": seed, "run.seeds": [seed]})


def evaluate_reader(plan: ReadingPlan, name: str, seed: int, length: str, out: Path) -> None:
    reader, about, folder = plan.readers[name], plan.lengths[length], out / name / f"{seed}"
    words = ["evaluate", "heldout", reader.method, "--run", str(folder), "--by", "kind"]
    words += ["--data", f"{length}={out / length}.jsonl", "--tasks", str(reader.tasks.get(length, about.tasks))]
    words += ["--variants", *about.variants, "--deadline", "7200"]
    words += ["--set", f"inference.kv_tokens={reader.evaluation_kv_tokens}"]
    words += [word for key, value in about.keys.get(reader.method, {}).items() for word in ("--set", f"{key}={value}")]
    call(folder, length, words)


def write_table(plan: ReadingPlan, out: Path) -> str:
    """Return a table for each length that has results."""
    parts = []
    for length in plan.lengths:
        sizes = count_tokens(out, length)
        if rows := [row for name in plan.readers for row in list_rows(plan, name, length, sizes, out)]:
            title = f"{length} times the length of training, {sum(sizes) // len(sizes):,} tokens a document"
            head = ["reader", "", "tasks", "failed", "all", *QUESTIONS, "tokens", "CPU s"]
            parts.append(f"{title}\n\n{markdown(head, *rows)}")
    return "\n\n".join(parts) + "\n"


def count_tokens(out: Path, length: str) -> list[int]:
    """Return the tokens of each document of a length."""
    tokenizer = load_tokenizer(out / "model")
    return [len(encode_text(tokenizer, task.context)) for task in read_tasks(out / f"{length}.jsonl")]


def list_rows(plan: ReadingPlan, name: str, length: str, sizes: Sequence[int], out: Path) -> Iterator[list[str]]:
    folders = [folder for seed in plan.seeds if (folder := out / name / f"{seed}").exists()]
    found = [result for folder in folders for result in RunFolder(folder).evaluations() if result.data == length]
    for variant in sorted({result.variant for result in found}, reverse=True):  # untrained first
        results = [result for result in found if result.variant == variant]
        count = results[0].n
        kinds = [f"{100 * fmean(take(results, kind)):.0f}" for kind in QUESTIONS]
        failed = sum(sum(result.failures.values()) for result in results)
        tokens = sum(sum(result.policy_tokens or ()) for result in results) / len(results) / sum(sizes[:count])
        seconds = sum(result.notes["cpu_seconds"] for result in results) / len(results) / count
        score = show_score(score_seeds(results))
        numbers = [f"{count} x {len(results)}", f"{failed}", score, *kinds, f"{tokens:.3f}", f"{seconds:.2f}"]
        yield [name, variant, *numbers]


def take(results: Sequence[EvalResult], kind: str) -> list[float]:
    """Return the scores of all tasks of a kind."""
    pairs = [pair for each in results for pair in zip(each.scores["official"], each.labels["kind"], strict=True)]
    return [score for score, own in pairs if own == kind]


if __name__ == "__main__":
    sys.exit(main())
