"""Write the files of a method's made-up world.

tokentrue data world search_r1 --out runs/data/search_r1-tiny        # model/, corpus.jsonl
tokentrue data world search_r1 --world visits --out runs/data/search_r1-visits
tokentrue data world search_r1 --split test --domain four-things --count 256 --out test-four.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from core.config import RecipeError
from core.data.files import write_jsonl, write_records
from core.options import make_command_parser, show_errors
from core.worlds.world import World, find_world

FAMILY = "what the start model is: dense (default), a mixture of experts, or with gated delta nets"


@show_errors(ValueError)
def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        world = find_world(options.method, options.world)
    except RecipeError as error:
        parser.error(str(error))
    if world is None:
        parser.error(f"{options.method} has no {options.world}.py; is it a method with that world?")
    domains = (*world.domains, *world.rewrites)
    try:
        if options.split is None:
            write_world(world, options.out, options.seed, options.family)
        elif not domains:
            parser.error(f"the world of {options.method} draws no tasks; its data come from another command")
        elif options.split not in world.splits:
            parser.error(f"--split {options.split}: {options.method} has {', '.join(world.splits)}")
        elif options.domain not in (None, *domains):
            parser.error(f"--domain {options.domain}: {options.method} has {', '.join(domains)}")
        else:
            tasks = world.draw_tasks(options.split, options.count, options.seed, options.domain)
            if options.seed and tasks == world.draw_tasks(options.split, options.count, 0, options.domain):
                parser.error(f"--seed {options.seed}: {options.method} draws the same tasks whatever the seed")
            write_jsonl(options.out, tasks, world.to_record)
    except OSError as error:
        print(f"error: --out {options.out}: {error}", file=sys.stderr)
        return 1
    return 0


def write_world(world: World, folder: Path, seed: int, family: str) -> None:
    """Write the passages, the start model and the word lists of a world."""
    folder.mkdir(parents=True, exist_ok=True)
    if world.passages is not None:
        write_records(folder / "corpus.jsonl", world.passages())
    if world.corpus is not None:
        world.build_model(folder / "model", seed, family)
    for name, words in world.word_lists.items():
        (folder / f"{name}.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("data world", __doc__)
    parser.add_argument("method", metavar="METHOD", help="a method with a world: a name in agentic/, or a folder")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="a folder, or with --split a file")
    parser.add_argument("--world", default="world", metavar="NAME", help="key `world` of the recipe (default: world)")
    parser.add_argument("--family", default="qwen2", choices=("qwen2", "qwen3_moe", "qwen3_5_text"), help=FAMILY)
    parser.add_argument("--split", metavar="NAME", help="write tasks of this split instead of the start model")
    parser.add_argument("--domain", metavar="NAME", help="what the tasks are like (default: as in training)")
    parser.add_argument("--count", type=int, default=64, help="how many tasks (default: 64)")
    parser.add_argument("--seed", type=int, default=0)
    return parser
