"""The tau2-bench that our numbers are for, and its tasks as a data file for training with Tau2EnvironmentFactory.

tau2-bench is MIT, github.com/sierra-research/tau2-bench; it is pinned to v1.0.1, code and data.

    tokentrue data tau2-tasks --tau2-python TAU2/bin/python --tau2-data TAU2_DATA \\
        --domain telecom --split train --solo --out data/tau2-telecom-train.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
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

BLOBS = {
    "domains/airline/db.json": "c6a1e817aa9102c5822e83affb3595acbc312701",
    "domains/airline/policy.md": "8098be7db3f47de943fad39d1e057ede6cc6cd04",
    "domains/airline/split_tasks.json": "c83cce155671e66a6bf07450fd2845fe0eb1f229",
    "domains/airline/tasks.json": "ea4ff5e3f5e3d97ca391846a6e8dd9eb3437dc80",
    "domains/retail/db.json": "4d67b03b2d39ade5a7ab6facb2edd7ab3e013d48",
    "domains/retail/policy.md": "d127e6b074654926f337d0d98b0e669ebe90d19e",
    "domains/retail/split_tasks.json": "8b20704a17aa1940b1e58668f89dcef2ddaeeea3",
    "domains/retail/tasks.json": "e95a9f898b2d1f6568ea8faec78edc3767ce747d",
    "domains/telecom/db.toml": "6c8a639d85896a049a5daf87332107a840a55aac",
    "domains/telecom/main_policy.md": "c55f5bd10c49a3d0b48f6e83a3168e6242fb2be7",
    "domains/telecom/main_policy_solo.md": "2da88ab26054dbd574e48353e54b4296f0e554dd",
    "domains/telecom/split_tasks.json": "a5b01687eaaa5c669f792bff33c0d6ec13be36fd",
    "domains/telecom/tasks.json": "6f41a5e3489e187fa247d729706509d8250a31c1",
    "domains/telecom/tech_support_manual.md": "b64a9f1433bfb62bdaf9e5c1d90c10e833b26c17",
    "domains/telecom/tech_support_workflow.md": "36104c70ea1caf5adfbbc8b26b61e29a1da72a7c",
    "domains/telecom/tech_support_workflow_solo.md": "768d8f446ee7bd9d301f614a03d9a403810c2ecc",
    "domains/telecom/user_db.toml": "1def9a98eabf1d4a5fc95a67387ec294f56196d8",
    "user_simulator/simulation_guidelines.md": "b55a28a1d5eaf81e72bdc263307d9f512fe49a99",
    "user_simulator/simulation_guidelines_tools.md": "a7235b1ddf8d0d1e2edc9b1708916f37b0aac045",
}
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
