"""Build RULER tasks: `generate(family, ...)` in Python, `tokentrue data ruler` on the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveInt

from benchmarks.ruler.sample import Budget, SampleKey, TaskFamily, to_task
from benchmarks.ruler.tasks import TASKS, add_task_options, make_family, read_task_options
from core.data import write_jsonl
from core.options import argparse_type, show_errors
from core.text.tokenizer import load_tokenizer
from core.types import Task

JUMP = 32
"""How far beyond the last measured size a rate is trusted."""

TOLERANCE = 0.001
"""Share of the limit that may stay unused, where that is more than one unit."""


def parse_length(text: str) -> int:
    """Read a number of tokens: 7168, 7K (7 x 1024) or 3.5M (3.5 x 1024 x 1024)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KkMm]?)", text.strip())
    tokens = float(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()] if match else 0.0
    if tokens < 1 or not tokens.is_integer():
        raise ValueError(f"length {text!r}: not a number of tokens. Write 7168, 7K (7 x 1024) or 3.5M")
    return int(tokens)


Length = Annotated[int, BeforeValidator(parse_length)]


def token_counter(tokenizer: Any) -> Callable[[str], int]:
    """Return a function from a text to its number of tokens, without special tokens.

    `tokenizer` is a Hugging Face tokenizer, or any callable from text to a list of ids.
    """
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return lambda text: len(tokenizer(text))


def fit_units(
    tokens: Callable[[int], int], limit: int, *, smallest: int = 1, largest: int | None = None
) -> tuple[int, int]:
    """Return the number of units that fill `limit` tokens to within one unit or 0.1%, and their exact token count.

    `tokens(units)` should grow with `units`. A secant search inside a bracket: each probe aims by the tokens per unit
    seen so far, so most probes are small and only the last one or two are of full size. The result depends on the
    arguments alone.

    Raises:
        ValueError: even `smallest` units are too many, or `largest` too few to come near the limit.
    """
    low, low_tokens, high = smallest, tokens(smallest), None
    if low_tokens > limit:
        raise ValueError(f"the smallest sample ({smallest} units) has {low_tokens} tokens, over the limit of {limit}")
    margin = limit * TOLERANCE
    rate = max(low_tokens / max(smallest, 1), 1e-3)
    while limit - low_tokens > margin and (high is None or high - low > 1):
        if low == largest:
            if limit - low_tokens > max(2 * rate, 10 * margin):
                raise ValueError(f"all {largest} units together have {low_tokens} tokens, too few for {limit}")
            break
        aim = limit - low_tokens - margin / 2
        if high is not None and limit - low_tokens < rate:
            break
        probe = min(low + max(1, int(aim / rate)), JUMP * max(low, 1))
        probe = min(bound for bound in (probe, largest, high and high - 1) if bound is not None)
        probe_tokens = tokens(probe)
        if probe_tokens > limit or probe - low >= low / JUMP:
            rate = max((probe_tokens - low_tokens) / (probe - low), 1e-3)
        if probe_tokens > limit:
            high = probe
        else:
            low, low_tokens = probe, probe_tokens
    return low, low_tokens


def generate(
    family: TaskFamily,
    *,
    length: int,
    count: int,
    tokenizer: Any,
    seed: int = 42,
    split: str = "test",
    budget: Budget = "prompt",
    start: int = 0,
    units: int | None = None,
) -> Iterator[Task]:
    """Yield samples `start` to `start + count - 1`, each at most `length` tokens and short of it by about one unit.

    Args:
        tokenizer: see `token_counter`.
        budget: what `length` limits: `prompt`, as in RULER, RULER's whole prompt and the room for its answer;
            `document`, the context alone.
        units: take exactly this many units (noise lines, essay words, documents ...) instead of fitting `length`,
            which then serves as a name; not checked against it.

    Raises:
        ValueError: the length cannot be reached with this family's options; the message says why.
    """
    measure = token_counter(tokenizer)
    for index in range(start, start + count):
        key = SampleKey(family.name, split, seed, index, length)
        sized = family.draw(key)

        def tokens(size: int, sized: Any = sized) -> int:
            draft = sized.build(size)
            return measure(draft.context) if budget == "document" else measure(draft.prompt) + family.new_tokens

        if units is None:
            try:
                size, total = fit_units(tokens, length, smallest=sized.smallest, largest=sized.largest)
            except ValueError as error:
                raise ValueError(f"{family.name}, sample {index}: {error}") from None
        elif sized.smallest <= units <= (sized.largest or units):
            size, total = units, tokens(units)
        else:
            possible = f"{sized.smallest} to {sized.largest or 'any'}"
            raise ValueError(f"{family.name}, sample {index}: {units} units wanted, {possible} possible")
        yield to_task(family, key, sized.build(size), units=size, tokens=total, budget=budget)


@show_errors(ValueError, OSError)
def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if (args.length is None) == (args.num_docs is None):
        parser.error("give either --length or, for hqa and qa, --num-docs")
    of_documents = args.task in ("hqa", "qa_1", "qa_2")
    if args.num_docs and not of_documents:
        raise ValueError(f"--num-docs: task {args.task} has no documents; give --length")
    if args.split != "test" and of_documents:
        raise ValueError(f"--split: {args.task} has the questions of its file in every split; give another file")
    from rich.progress import track

    family = make_family(args.task, read_task_options(args))
    tasks = generate(
        family,
        length=args.length or args.num_docs,
        count=args.count,
        tokenizer=load_tokenizer(args.tokenizer, for_chat=False),
        seed=args.seed,
        split=args.split,
        budget=args.budget,
        units=args.num_docs,
    )
    label = f"{args.task} {args.length or args.num_docs}"
    written = write_jsonl(args.out, track(tasks, description=label, total=args.count))
    print(f"{written} tasks -> {args.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data ruler", description=__doc__)
    add = parser.add_argument
    add("--task", required=True, choices=TASKS)
    add("--tokenizer", required=True, help="folder or Hub id of the tokenizer that counts")
    add("--length", type=argparse_type(Length), help="token limit of each sample: 7168, 7K (7 x 1024), 1M")
    add("--num-docs", type=argparse_type(PositiveInt), help="hqa, qa: number of documents instead of --length")
    add("--count", type=argparse_type(PositiveInt), required=True, help="number of samples")
    add("--seed", type=int, default=42)
    add("--split", default="test", help="samples of different splits share nothing; hqa and qa have one")
    add("--budget", choices=("prompt", "document"), default="prompt", help="what --length limits")
    add("--out", type=Path, required=True, help="JSONL file to write")
    add_task_options(parser)
    return parser
