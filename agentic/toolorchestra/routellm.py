"""Makes the tasks of the preset `desk` from RouteLLM's data: prompts of MMLU and GSM8K, and which model answers right.

    tokentrue data routes --data data/routellm --split train --out train.jsonl

`weak` is Mixtral-8x7B, `strong` is GPT-4. Each of the FOLDS keeps another quarter of MMLU's subjects out of training,
and a quarter of GSM8K's prompts. Each prompt comes once for each of the PRICES of a strong call.

Most prompts are answered right by both models or by neither. They teach only that a call costs something, so a share of
them is enough in training, at a cost that makes up for the others; a test has them all.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.routing import route_messages
from core.data import DataError, read_records, read_tasks, write_jsonl
from core.data.splits import Split, draw_place, drop_overlaps
from core.options import show_errors
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Task
from core.worlds import SPLITS, Example, World

FOLDS = 4
GSM8K = "gsm8k"
DEV_SUBJECTS = 3
PRICES: Mapping[float, str] = {0.05: "very cheap", 0.1: "cheap", 0.15: "expensive", 0.3: "very expensive"}
"""Maps what a strong call costs, in right answers, to its words. Their mean is its mean gain in training, 0.15: if one
model is better for the mean of prompts and prices, the policy soon names it for all, and nothing is left to compare.
"""

FIELDS = {"question": str, "kind": str, "weak": bool, "strong": bool}

Records = Sequence[Mapping[str, Any]]


def read_routes(path: Path) -> list[dict[str, Any]]:
    """Read the tasks of `tokentrue data download routellm` as records with set, prompt, weak and strong, each once.

    `path` is a file, or the folder, whose own splits are put together: a fold makes others.

    Raises:
        DataError: a task lacks a field, or the folder is empty.
    """
    records: list[dict[str, Any]] = []
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        for location, task in read_records(file):
            known = {**task, **task.get("metadata", {})}
            for name, kind in FIELDS.items():
                if not isinstance(known.get(name), kind):
                    fix = "download it: tokentrue data download routellm"
                    raise location.error(name, f"must be a {kind.__name__}", fix)
            prompt, subject, weak, strong = (known[name] for name in FIELDS)
            records.append({"set": subject, "prompt": prompt, "weak": weak, "strong": strong})
    if not records:
        raise DataError(f"{path}: no records. Fix: download them: tokentrue data download routellm")
    unique = list({record["prompt"]: record for record in reversed(records)}.values())[::-1]
    tell(f"{path}: left out: a prompt that is there twice", len(records) - len(unique))
    return unique


def tell(what: str, count: int) -> None:
    if count:
        print(f"note: {what} ({count:,} times)", file=sys.stderr)


def split_routes(records: Records, fold: int) -> dict[str, list[Mapping[str, Any]]]:
    """Return the records of train, dev and test. No subject of MMLU is in two of them, and none of train is a copy."""
    subjects = sorted({record["set"] for record in records} - {GSM8K})
    Random(0).shuffle(subjects)
    test = set(subjects[fold::FOLDS])
    dev = set([subject for subject in subjects if subject not in test][:DEV_SUBJECTS])
    parts: dict[str, list[Mapping[str, Any]]] = {split: [] for split in SPLITS}
    for record in records:
        of_gsm8k = record["set"] == GSM8K
        held_out = draw_place(record["prompt"], FOLDS) == fold if of_gsm8k else record["set"] in test
        parts["test" if held_out else "dev" if record["set"] in dev else "train"].append(record)
    return drop_copies(parts)


def drop_copies(parts: Mapping[str, Records]) -> dict[str, list[Mapping[str, Any]]]:
    """Drop what overlaps with a later part of train, dev and test (core/data/splits.py), and tell how many."""
    names: dict[str, Split] = {"train": "train", "dev": "eval", "test": "test"}
    tasks = {
        names[part]: [Task(str(i), record["prompt"], ("",)) for i, record in enumerate(records)]
        for part, records in parts.items()
    }
    told: Counter[str] = Counter()
    kept = drop_overlaps(tasks, told)
    for what, count in told.items():
        tell(what, count)
    return {part: [records[int(task.task_id)] for task in kept[names[part]]] for part, records in parts.items()}


def draw_agreeing(records: Records) -> list[Mapping[str, Any]]:
    """Return the records on which the models differ, and as many on which they agree.

    Each of the latter has the `weight` of all that it stands for. There the choices differ by the price alone, so with
    its price times the weight a choice gains in the sum what it gains over all records.
    """
    differ = [record for record in records if record["weak"] != record["strong"]]
    agree = [record for record in records if record["weak"] == record["strong"]]
    drawn = Random(0).sample(agree, min(len(agree), len(differ)))
    return differ + [{**record, "weight": len(agree) / len(drawn)} for record in drawn]


def make_tasks(records: Records, split: str) -> Iterator[Task]:
    """Yield a task for each prompt and price: in a test the prices of a prompt follow each other, else all is mixed."""
    records = Random(0).sample(records, len(records))
    made = [make_task(record, f"{split}-{i:05d}", price) for i, record in enumerate(records) for price in PRICES]
    yield from made if split == "test" else Random(1).sample(made, len(made))


def make_task(record: Mapping[str, Any], name: str, price: float) -> Task:
    """Make a task; its answer is the model with the best reward."""
    right = {model: record[model] for model in ("weak", "strong")}
    cost = {"weak": 0.0, "strong": price * record.get("weight", 1.0)}
    best = max(right, key=lambda model: right[model] - cost[model])
    wish = f"A right answer is worth 1. Asking strong costs {price:g}, which is {PRICES[price]}; weak is free."
    metadata = {"category": "route", "set": record["set"], "price": f"{price:g}", "question_id": name}
    metadata |= {"instruction": wish, "right": right, "cost": cost}
    return Task(f"{name}-{price:g}", record["prompt"], (best,), metadata=metadata)


def demonstrate(rng: Random, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the form of a reply and no route: chance draws the model."""
    tasks = read_tasks(recipe.data.train, require_context=False)
    while True:
        task = rng.choice(tasks)
        yield [encode(recipe, tokenizer, task, rng.choice(list(task.metadata["right"])))]


def solve(rng: Random, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the better choice of every task, for the supervised baseline, as often as it gains the least price.

    Which choice is better does not depend on the price: at all PRICES it is `strong` where that alone is right. What a
    choice gains does.
    """
    examples = list[Example]()
    for task in tasks:
        weak, strong = (task.metadata["right"][model] - task.metadata["cost"][model] for model in ("weak", "strong"))
        examples += repeat(encode(recipe, tokenizer, task, task.answers[0]), round(abs(strong - weak) / min(PRICES)))
    rng.shuffle(examples)
    yield from examples


def encode(recipe: ToolOrchestraRecipe, tokenizer: Tokenizer, task: Task, choice: str) -> Example:
    """Encode a turn just as the rollout asks for it. The first token of the model's name is what is trained."""
    renderer = Renderer(tokenizer, {"enable_thinking": recipe.toolorchestra.thinking})
    messages, _ = route_messages(recipe.toolorchestra, renderer, task)
    return renderer.render(messages), encode_text(tokenizer, choice)[: recipe.toolorchestra.max_tokens]


WORLD = World(demonstrate=demonstrate, in_order=True, solve=solve)


@show_errors(DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    records = split_routes(read_routes(options.data), options.fold)[options.split]
    if options.split == "train":
        records = draw_agreeing(records)
    tasks = list(make_tasks(records, options.split))
    write_jsonl(options.out, tasks)
    print(f"{options.out}: {len(tasks):,} tasks, {len(records):,} prompts of {len({r['set'] for r in records})} sets")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data routes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="PATH", help="of tokentrue data download routellm")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--fold", type=int, choices=range(FOLDS), default=0, help="which subjects are kept out")
    return parser
