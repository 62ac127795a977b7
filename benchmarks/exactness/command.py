"""Plays the same conversations through capture layers, and prints what each would train of them.

    tokentrue exactness --model Qwen/Qwen3-4B FOLDER ... [--layers NAME ...]

Of a model only the tokenizer and its chat template are used; the replies are scripted. A layer of another project runs
with ENVIRONMENTS/LAYER/bin/python, which benchmarks/exactness/setup.sh makes; slime is found on PYTHONPATH. The
training rows of a rollout are compared with the engine's log: which sampled tokens are trained, and where.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

from benchmarks.exactness import layers
from benchmarks.exactness.engine import PROBES, Script, ScriptedServer
from core.hub import resolve
from core.options import show_errors
from core.report.table import markdown
from core.runs.files import write_json
from core.text.tokenizer import load_tokenizer

Log = Iterable[tuple[Sequence[int], Sequence[int]]]
"""Holds the prompt and the reply of each call that the engine had."""
Row = tuple[Sequence[int], Sequence[int]]
"""Holds the tokens of a training row, and a mask that is 1 where a token is trained."""


def measure(log: Log, rows: Iterable[Row]) -> dict[str, int]:
    """Return the counts of one rollout.

    A token stands in a context: all tokens before it. A trained token is the engine's if the engine sampled that token
    in that context. It is trained `again` if it was sampled there fewer times than it is trained, and `unseen` if it
    was never sampled there. `trained`, `again` and `unseen` are together all tokens that the rows train. A trainer
    computes all `row tokens`; those that stand in an earlier row in the same context it computes `twice`.
    """
    contexts: dict[tuple[int, int], int] = {}  # (a context, the next token) -> the context of both

    def follow(tokens: Sequence[int]) -> list[int]:
        """Return the context that ends with each token."""
        place, places = 0, []
        for token in tokens:
            place = contexts.setdefault((place, token), len(contexts) + 1)
            places.append(place)
        return places

    sampled = Counter(place for prompt, reply in log for place in follow([*prompt, *reply])[len(prompt) :])
    followed = [(follow(tokens), mask) for tokens, mask in rows]
    trained = Counter(place for places, mask in followed for place, m in zip(places, mask, strict=True) if m)
    computed = [place for places, _ in followed for place in places]
    exact = (trained & sampled).total()
    unseen = sum(number for place, number in trained.items() if place not in sampled)
    return {
        "rollouts": 1,
        "sampled": sampled.total(),
        "trained": exact,
        "again": trained.total() - exact - unseen,
        "unseen": unseen,
        "rows": len(followed),
        "row tokens": len(computed),
        "twice": len(computed) - len(set(computed)),
    }


OURS = ("tokentrue", "slime")
"""Names the layers that run with our own Python."""
COLUMNS = ("rollouts", "sampled", "trained", "again", "unseen", "rows", "row tokens", "twice")


@show_errors(ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    results = asyncio.run(run(options.model, options.layers, options.environments))
    print(write_table(results))
    write_json(options.output, results)
    return 0


async def run(models: Sequence[str], names: Sequence[str], environments: Path) -> list[dict[str, Any]]:
    """Run every layer with every model; return a record of each."""
    results = []
    for model in models:
        folder = resolve(model, weights=False)
        script = Script(load_tokenizer(folder))
        async with TestServer(ScriptedServer(script).app()) as server:
            for name in names:
                layer = name.partition("-")[0]
                python = Path(sys.executable) if layer in OURS else environments / layer / "bin/python"
                fix = f"bash benchmarks/exactness/setup.sh {layer} makes runs/exactness/{layer}"
                played = {"failure": f"there is no {python}; {fix}"}
                if python.exists():
                    command = [str(python.absolute()), "-m", layers.__name__, name, f"http://127.0.0.1:{server.port}"]
                    played = await play([*command, str(folder.resolve())], script)
                results.append({"layer": name, "model": model, "version": "", "conversations": [], **played})
                print(f"{name} {model}: {played['failure'] or 'done'}", file=sys.stderr, flush=True)
    return results


async def play(command: list[str], script: Script) -> dict[str, Any]:
    """Run a layer's process, and measure what it gives back for each conversation."""
    script.begin(PROBES)
    process = await asyncio.create_subprocess_exec(*command, cwd=layers.ROOT, stdout=PIPE, stderr=PIPE)
    output, errors = await process.communicate()
    if process.returncode:
        return {"failure": errors.decode().strip().rpartition("\n")[2]}
    played: dict[str, Any] = json.loads(output.decode().strip().rpartition("\n")[2])
    for each in played["conversations"]:
        if "rows" in each:
            each["exactness"] = measure(script.logs[each["name"]], each.pop("rows"))
    return {"failure": "", **played}


def write_table(results: Sequence[dict[str, Any]]) -> str:
    """Return a table with a line for each layer, whose cells have a value for each model, and what did not run."""
    cells: dict[str, list[list[str]]] = {}
    problems: dict[str, list[str]] = {}
    for result in results:
        name = f"{result['layer']} {result['version']}".strip()
        played = result["conversations"]
        cells.setdefault(name, []).append(show([each["exactness"] for each in played if "exactness" in each]))
        for what, reason in [("", result["failure"]), *((each["name"], each.get("error")) for each in played)]:
            where = f"{name} ({result['model']}) {what}".strip()
            if reason:
                problems.setdefault(reason, []).append(where)
    rows = [[name, *map(" / ".join, zip(*columns, strict=True))] for name, columns in cells.items()]
    lines = [" / ".join(dict.fromkeys(result["model"] for result in results)), ""]
    lines += [markdown(["layer", *COLUMNS], *rows)]
    lines += [f"\nnot run: {'; '.join(places)}: {reason}" for reason, places in problems.items()]
    return "\n".join(lines)


def show(found: Sequence[dict[str, int]]) -> list[str]:
    """Return the cells of a layer and a model."""
    if not found:
        return ["-"] * len(COLUMNS)
    both = sum(map(Counter, found), Counter())
    shown = {"trained": f"{both['trained'] / both['sampled']:.0%}", "rows": f"{both['rows'] / both['rollouts']:.1f}"}
    return [shown.get(name, str(both[name])) for name in COLUMNS]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue exactness", description=(__doc__ or "").partition("\n")[0])
    add, environments = parser.add_argument, Path("runs/exactness")
    add("--model", nargs="+", required=True, help="hub ids, or folders with a tokenizer that are named like the model")
    add("--layers", nargs="+", choices=layers.LAYERS, default=list(layers.LAYERS), metavar="NAME")
    add("--environments", type=Path, default=environments, metavar="DIR", help=f"default: {environments}")
    add("--output", type=Path, default=environments / "results.json", metavar="FILE", help="the results as JSON")
    return parser
