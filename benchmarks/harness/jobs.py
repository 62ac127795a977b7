"""Runs the trainings of a benchmark side by side, each once: killed at any moment, the same command goes on."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from core.report.stats import Estimate
from core.runs.files import write_text

TOKENTRUE = Path(sys.executable).with_name("tokentrue")


def run_all(jobs: Iterable[Callable[[], None]]) -> None:
    """Call the jobs, as many at a time as there are cores. After one has failed, no more begin."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def train(method: str, preset: str, out: Path, settings: Mapping[str, Any], baseline: str | None = None) -> None:
    """Train a run of a preset into a folder, unless it is done. `settings` are keys of the recipe."""
    changes = {**settings, "experiment.evaluate": {}, "experiment.report": []}
    words = ["run", method, "--preset", preset, "--out", str(out)]
    words += [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    call(out, baseline or "run", [*words, *(["--baseline", baseline] if baseline else [])])


def call(out: Path, name: str, words: Sequence[str]) -> None:
    """Run `tokentrue` unless it was done under this name for the folder `out`; it prints to a file beside that.

    Raises:
        RuntimeError: it failed, or was done with other words.
    """
    done, log = out / f".{name}-done", out.parent / f"{out.name}.log"
    said = shlex.join(words)
    if done.exists():
        if (before := done.read_text()) not in (said, ""):  # older markers are empty
            raise RuntimeError(f"{out}: {name} was done as `tokentrue {before}`; delete the folder to do it anew")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        ended = subprocess.run([str(TOKENTRUE), *words], stdout=file, stderr=file)
    if ended.returncode:
        raise RuntimeError(f"tokentrue {said} ended with {ended.returncode}; see {log}")
    write_text(done, said)
    print(f"{out}: {name} is done", flush=True)


def show_score(found: Estimate) -> str:
    """Write a mean and its interval in per cent."""
    return f"{100 * found.mean:.1f} ({100 * found.low:.1f}–{100 * found.high:.1f})"
