"""Writes repair tasks as JSONL in slime's format. A task follows from its split and number alone.

    python -m agentic.coding.tiny.tasks --split train --out train.jsonl                            # the shipped ones
    python -m agentic.coding.tiny.tasks --split train --size function --count 240 --out train.jsonl

`package` has two modules of five functions, for language models. `function`, `guarded` and `unseen` have one, for the
preset `tiny`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from agentic.coding.repairs.functions import SPLITS
from agentic.coding.repairs.generate import SHIPPED, Size, draw_record
from core.data.files import write_records


def main() -> None:
    parser = argparse.ArgumentParser(description="Write repair tasks.")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--size", choices=get_args(Size), default="package")
    parser.add_argument("--count", type=int, help="how many; by default those that are shipped")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    count = options.count or SHIPPED[options.split]
    write_records(options.out, (draw_record(options.split, number, options.size) for number in range(count)))


if __name__ == "__main__":
    main()
