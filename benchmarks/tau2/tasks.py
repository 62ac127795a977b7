"""The tau2-bench that our numbers are for, and its tasks as a data file for training with Tau2EnvironmentFactory.

tau2-bench is MIT, github.com/sierra-research/tau2-bench; it is pinned to v1.0.1, code and data.

    tokentrue data tau2-tasks --tau2-python TAU2/bin/python --tau2-data TAU2_DATA \\
        --domain telecom --split train --solo --out data/tau2-telecom-train.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from agentic.toolorchestra.environment import EnvironmentFault
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import tau2_tasks
from agentic.toolorchestra.tau2.worker import PIN
from core.data.files import write_jsonl
from core.options import show_errors

DOMAINS = ("retail", "airline", "telecom", "telecom-solo")

_, _, COMMIT = PIN.rpartition("@")

BLOBS: dict[str, str] = json.loads(Path(__file__).with_name("blobs.json").read_text(encoding="utf-8"))
"""Maps the data files at that commit, by their path in data/tau2, to git's own ids. Grades depend on these files."""


def list_departures(about: Mapping[str, object], domains: list[str]) -> list[str]:
    """Return how an installation differs from the pinned one; `about` is the worker's answer."""
    found = []
    if about["commit"] not in (COMMIT, None):
        found.append(f"tau2-bench is at {about['commit']}, not at {COMMIT}")
    if about["commit"] is None:
        found.append(f"tau2-bench {about['version']} was installed from a folder: its commit is not known")
    blobs = about["blobs"]
    assert isinstance(blobs, Mapping)
    for path, blob in BLOBS.items():
        domain = re.match(r"domains/(\w+)/", path)
        if (domain is None or domain[1] in domains) and blobs.get(path) != blob:
            found.append(
                f"data/tau2/{path} is {'another file' if path in blobs else 'missing'}, not git blob {blob[:12]}"
            )
    return found


@show_errors(EnvironmentFault, OSError)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    with closing(Workers(options.tau2_python, options.tau2_data)) as workers:
        tasks = asyncio.run(tau2_tasks(workers, options.domain, split=options.split, solo=options.solo))
        written = write_jsonl(options.out, tasks)
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
