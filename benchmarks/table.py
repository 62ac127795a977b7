"""Collect what was published and what we measured in one table, and say how to measure the rest.

    tokentrue evaluate table                     # from the evaluations in runs/
    tokentrue evaluate table --dry-run --gpus 4  # only what is missing: commands, servers, and where they fit

A published row has our score if a folder holds one of the same model under the same protocol
(benchmarks/harness/published.py), and else the command that makes it. The command starts nothing by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.aime.published import published_scores as aime_scores
from benchmarks.harness.options import positive
from benchmarks.harness.plan import EXPECTED_ERRORS
from benchmarks.ruler.published import AVERAGE, LONG_WINDOW, WINDOW
from benchmarks.ruler.published import published_scores as ruler_scores
from benchmarks.tau2.published import published_scores as tau2_scores
from core.report.summary import build_summary
from core.report.table import PublishedScore, data_sections, markdown, published_table
from core.runs.run_folder import RunFolder

AIME_BUDGET = 2048
"""Tokens of a call in the preset `published` of AgentFlow."""

USABLE = 0.9
"""Share of a GPU's memory that a server takes."""


@dataclass(frozen=True)
class Server:
    """Describes a model behind a server. `billions` of parameters in bfloat16; `kv_bytes` of cache for a token."""

    model: str
    billions: float
    kv_bytes: int

    def gigabytes(self, tokens: int) -> float:
        """Return the memory of the weights and of a cache of so many tokens."""
        return 2 * self.billions + self.kv_bytes * tokens / 1e9


_7B, _8B = (7.62, 57_344), (8.19, 147_456)
SERVERS = {
    server.model.rpartition("/")[2]: server
    for server in (
        Server("BytedTsinghua-SIA/RL-MemoryAgent-7B", *_7B),
        Server("BytedTsinghua-SIA/RL-MemoryAgent-14B", 14.77, 196_608),
        Server("LMIS-ORG/MemAgent_Slime_Agentic_Qwen2.5_7B", *_7B),
        Server("AgentFlow/agentflow-planner-7b", *_7B),
        Server("LMIS-ORG/AgentFlow_Slime_Agentic_Qwen2.5_7B", *_7B),
        Server("nvidia/Orchestrator-8B", *_8B),
        Server("Qwen/Qwen2.5-7B-Instruct", *_7B),
        Server("Qwen/Qwen2.5-7B-Instruct-1M", *_7B),
        Server("Qwen/Qwen2.5-14B-Instruct-1M", 14.77, 196_608),
        Server("Qwen/Qwen2.5-Coder-7B-Instruct", *_7B),
        Server("Qwen/Qwen3-8B", *_8B),
        Server("Qwen/Qwen3-32B", 32.76, 262_144),
    )
}
"""Maps the names of models to their servers: parameters, and layers x 2 x key-value heads x 128 x 2 bytes."""

CACHED = {"ruler": 16 * 8192, "aime": 8 * 16384, "tau2": 4 * 32768}
"""Tokens in a server's cache: so many calls at once, with the context of the benchmark."""
SERVE_FIRST = (
    "Serve a command's models first. --policy-url names the address of the evaluated one; --set roles.NAME=URL (AIME) "
    "and --set toolorchestra.models.NAME (tau2-bench) name those of the others."
)


@dataclass(frozen=True)
class Evaluation:
    """Holds a command that gives published rows their scores, and the models that must be served meanwhile."""

    command: str
    benchmark: str
    models: tuple[str, ...]
    cached_tokens: int


def list_published() -> list[PublishedScore]:
    """Return every published score of every benchmark."""
    return [*ruler_scores("ruler-hqa"), *ruler_scores(AVERAGE), *aime_scores("aime24", AIME_BUDGET), *tau2_scores()]


def find_evaluation(row: PublishedScore) -> Evaluation | None:
    """Return what measures a row; None where its model or its protocol cannot be had."""
    model = SERVERS.get(row.model or row.name)
    if model is None or row.variant == "single" or row.protocol == "not stated":
        return None
    named = f"--model {model.model}"
    if row.variant in ("untrained", "agent-untrained"):
        named = f"--model {model.model} --baseline {model.model}"
    if row.data.startswith("ruler"):
        long = row.protocol is not None and row.protocol.endswith("990K")
        window = f" --window {LONG_WINDOW.prompt_tokens} {LONG_WINDOW.answer_tokens}" if long else ""
        data = "--task ruler-10 --essays ESSAYS" if row.data == AVERAGE else "--data data/memagent-eval"
        command = f"evaluate ruler --preset published {named} --variants {row.variant} {data} --seeds 0{window}"
        whole = LONG_WINDOW if long else WINDOW
        tokens = CACHED["ruler"] if row.variant != "full-context" else whole.prompt_tokens + whole.answer_tokens
        return Evaluation(command, "ruler", (model.model,), tokens)
    if row.data == "aime24":
        preset = "seed" if row.protocol == "slime-agentic" else "published"
        command = f"evaluate aime --preset {preset} {named} --variants {row.variant} --data aime24"
        roles = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct")
        return Evaluation(command, "aime", (model.model, *roles), CACHED["aime"])
    experts = () if row.protocol == "standard" else ("Qwen/Qwen3-32B",)
    command = (
        f"evaluate tau2 --protocol {row.protocol} {named} --variants {row.protocol} --user gpt-5 --judge gpt-5 "
        "--tau2-python TAU2/bin/python --tau2-data TAU2_DATA --trials 1"
    )
    return Evaluation(command, "tau2", (model.model, *experts), CACHED["tau2"])


def place_servers(needed: Mapping[str, float], gpus: int, gigabytes: float) -> dict[str, list[int]] | None:
    """Return the GPUs of each model, the largest first; None where they do not fit.

    A model that is too large for a GPU takes the next power of two of them, alone.
    """
    free = [USABLE * gigabytes] * gpus
    places: dict[str, list[int]] = {}
    for model, memory in sorted(needed.items(), key=lambda item: -item[1]):
        width = 1
        while memory / width > USABLE * gigabytes:
            width *= 2
        fitting = [gpu for gpu in range(gpus) if free[gpu] >= memory / width]
        if len(fitting) < width:
            return None
        places[model] = fitting[:width]
        for gpu in places[model]:
            free[gpu] = free[gpu] - memory if width == 1 else 0.0
    return places


def find_sections(runs: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the sections of the summaries of all folders that hold evaluations."""
    for config in sorted(runs.glob("*/config.yaml")):
        folder = RunFolder(config.parent)
        if folder.evaluations():
            yield data_sections(build_summary(folder))


def describe_missing(rows: Sequence[PublishedScore], gpus: int, gigabytes: float) -> list[str]:
    """Return lines for the rows without a score of ours: commands, and the GPUs of the servers that each needs."""
    evaluations: dict[Evaluation, int] = {}
    out_of_reach = []
    for row in rows:
        evaluation = find_evaluation(row)
        if evaluation is None:
            out_of_reach.append(f"{row.name}, {row.data}: {100 * row.score:.1f} ({row.source})")
        else:
            evaluations[evaluation] = evaluations.get(evaluation, 0) + 1
    lines = []
    for evaluation, count in evaluations.items():
        needed = {
            model: SERVERS[model.rpartition("/")[2]].gigabytes(evaluation.cached_tokens) for model in evaluation.models
        }
        places = place_servers(needed, gpus, gigabytes)
        lines += [f"{count} cells: .venv/bin/tokentrue {evaluation.command}"]
        for model, memory in needed.items():
            where = "does not fit beside the others" if places is None else f"GPU {', '.join(map(str, places[model]))}"
            lines.append(f"    {model}: {memory:.0f} GB, {where}")
    return [*lines, *(["No cell can be had for:"] if out_of_reach else []), *(f"    {line}" for line in out_of_reach)]


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        found = list(find_sections(options.runs))
    except (*EXPECTED_ERRORS, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = list_published()
    measured = {row: sections for row in rows for sections in found if row.find_ours(sections) is not None}
    if not options.dry_run:
        header, *_ = published_table([], {})
        table = [published_table([row], measured.get(row, {}))[1] for row in rows]
        print(markdown(header, *table), end="\n\n")
    missing = [row for row in rows if row not in measured]
    print(f"{len(missing)} of {len(rows)} published scores have none of ours beside them.")
    print("\n".join([SERVE_FIRST, *describe_missing(missing, options.gpus, options.gpu_memory)]))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="tokentrue evaluate table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="holds the results' folders")
    parser.add_argument("--dry-run", action="store_true", help="print what is missing, and no table")
    parser.add_argument("--gpus", type=positive, default=1, metavar="N")
    parser.add_argument("--gpu-memory", type=positive, default=80, metavar="GB", help="of one GPU (default: 80)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
