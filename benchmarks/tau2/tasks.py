"""tau2-bench's tasks as a data file, for training with `toolorchestra.environment` set to Tau2EnvironmentFactory.

    tokentrue data tau2-tasks --tau2-python TAU2/bin/python --tau2-data TAU2_DATA \\
        --domain telecom --split train --solo --out data/tau2-telecom-train.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from agentic.toolorchestra.environment import EnvironmentFault
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import tau2_tasks
from core.data.files import write_jsonl


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    workers = Workers(options.tau2_python, options.tau2_data)
    try:
        tasks = asyncio.run(tau2_tasks(workers, options.domain, split=options.split, solo=options.solo))
        written = write_jsonl(options.out, tasks)
    except (EnvironmentFault, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        workers.close()
    print(f"{options.out}: {written} tasks")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data tau2-tasks", description="tau2's tasks as a data file.")
    parser.add_argument("--tau2-python", metavar="PYTHON", help="the interpreter that has it (default: this one)")
    parser.add_argument("--tau2-data", metavar="DIR", help="its `data` folder (default: beside its sources)")
    parser.add_argument("--domain", required=True, choices=("retail", "airline", "telecom"))
    parser.add_argument("--split", default="train", help="train, test or base")
    parser.add_argument("--solo", action="store_true", help="without a user (telecom)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
