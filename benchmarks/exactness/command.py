"""Plays the same conversations through capture layers, and prints what each would train of them.

    tokentrue exactness --model Qwen/Qwen3-4B [--model ID=FOLDER ...] [--layers NAME ...] [--setup]

Of a model only the tokenizer and its chat template are used; the replies are scripted. Each layer runs with the Python
of its own environment, `--python LAYER=FILE` or `ENVIRONMENTS/LAYER/bin/python`; `--setup` makes what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

from benchmarks.exactness import layers
from benchmarks.exactness.engine import PROBES, Script, ScriptedServer
from benchmarks.exactness.measure import Exactness, measure
from core.hub import resolve
from core.options import show_errors
from core.runs.files import read_json, write_json
from core.text.tokenizer import load_tokenizer

HERE = Path(__file__).parent
REQUIREMENTS = read_json(HERE / "requirements.json")
"""Maps a layer to what its environment needs, the layer itself first. Those without any run with our own Python."""
HEAD = "| layer | rollouts | sampled | trained | again | unseen | rows | row tokens | twice |"


@show_errors(ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    pythons = dict(pair.split("=", 1) for pair in options.python)
    unmade: dict[str, str] = {}
    for layer in {name.partition("-")[0] for name in options.layers} - set(pythons):
        folder = options.environments / layer
        pythons[layer] = str(folder / "bin/python") if REQUIREMENTS[layer] else sys.executable
        if options.setup and not Path(pythons[layer]).exists():
            unmade[layer] = set_up(folder, REQUIREMENTS[layer])
    models = dict(model.split("=", 1) if "=" in model else (model, model) for model in options.model)
    results = asyncio.run(run(models, options.layers, pythons, options.slime, unmade))
    print(write_table(results))
    write_json(options.output, results)
    return 0


def set_up(folder: Path, needs: Sequence[str]) -> str:
    """Make an environment; return why there is none, or ""."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    made = subprocess.run(
        [folder / "bin/python", "-m", "pip", "install", "-q", *needs], stderr=subprocess.PIPE, text=True
    )
    if made.returncode:
        shutil.rmtree(folder)
    lines = [line for line in made.stderr.splitlines() if line.startswith("ERROR")]
    return f"pip install {' '.join(needs)}: {' '.join(lines)[:300]}" if made.returncode else ""


async def run(
    models: Mapping[str, str],
    names: Sequence[str],
    pythons: Mapping[str, str],
    slime: Path | None,
    unmade: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Run every layer with every model; return a record of each. `unmade` says why a layer has no environment."""
    results = []
    for model, place in models.items():
        folder = resolve(place, weights=False)
        script = Script(load_tokenizer(folder))
        server = TestServer(ScriptedServer(script).app())
        await server.start_server()
        for name in names:
            needs = REQUIREMENTS[layer := name.partition("-")[0]]
            command = [pythons[layer], layers.__file__, name, f"http://127.0.0.1:{server.port}", model]
            command += [str(folder.resolve()), re.split(r"[\[=]", needs[0])[0] if needs else ""]
            reason = unmade.get(layer)
            played = {"failure": reason} if reason else await play(command, script, slime)
            results.append({"layer": name, "model": model, "command": command, **played})
            print(f"{name} {model}: {played['failure'] or 'done'}", file=sys.stderr, flush=True)
        await server.close()
    return results


async def play(command: list[str], script: Script, slime: Path | None) -> dict[str, Any]:
    """Run a layer's process, and measure what it gives back for each conversation."""
    script.begin(PROBES)
    path = os.pathsep.join(map(str, filter(None, (slime, layers.ROOT))))
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
    except FileNotFoundError:
        return {"failure": f"there is no {command[0]}; --setup makes it"}
    output, errors = await process.communicate()
    lines = [json.loads(line) for line in output.decode().splitlines() if line.startswith('{"name"')]
    for line in lines[1:]:
        if "rows" in line:
            line["exactness"] = asdict(measure(script.logs[line["name"]], line.pop("rows")))
    failure = errors.decode().strip().rpartition("\n")[2] if process.returncode else ""
    return {"failure": failure, "version": lines[0].pop("version") if lines else "", "conversations": lines[1:]}


def write_table(results: Sequence[dict[str, Any]]) -> str:
    """Return a table with a line for each layer, whose cells have a value for each model, and what did not run."""
    rows: dict[str, list[list[str]]] = {}
    problems: dict[str, list[str]] = {}
    for result in results:
        found = result.get("conversations", [])
        for reason in filter(None, dict.fromkeys([result["failure"], *(each.get("error") for each in found)])):
            names = [each["name"] for each in found if each.get("error") == reason]
            where = f"{result['layer']} ({result['model']})"
            problems.setdefault(reason, []).append(f"{where} {', '.join(names)}".strip())
        both = sum((Exactness(**each["exactness"]) for each in found if "exactness" in each), Exactness())
        version = result.get("version", "")
        rows.setdefault(f"{result['layer']} {version}".strip(), []).append(show(both))
    lines = [
        " / ".join(dict.fromkeys(result["model"] for result in results)),
        "",
        HEAD,
        re.sub(r"[^|]+", " --- ", HEAD),
    ]
    lines += [
        f"| {name} | {' | '.join(' / '.join(cell) for cell in zip(*cells, strict=True))} |"
        for name, cells in rows.items()
    ]
    return "\n".join(lines + [f"\nnot run: {'; '.join(places)}: {reason}" for reason, places in problems.items()])


def show(found: Exactness) -> list[str]:
    """Return the cells of a layer and a model."""
    if not found.sampled:
        return ["-"] * (HEAD.count("|") - 2)
    counts = (found.again, found.unseen, f"{found.rows / found.rollouts:.1f}", found.tokens, found.twice)
    return [str(found.rollouts), str(found.sampled), f"{found.trained / found.sampled:.0%}", *map(str, counts)]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue exactness", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="ID[=FOLDER]",
        help="a hub id, and a folder with its tokenizer",
    )
    parser.add_argument("--layers", nargs="+", choices=layers.LAYERS, default=list(layers.LAYERS), metavar="NAME")
    parser.add_argument("--python", nargs="+", default=[], metavar="LAYER=FILE", help="the Python that has a layer")
    parser.add_argument("--environments", type=Path, default=Path("runs/exactness"), metavar="DIR")
    parser.add_argument("--setup", action="store_true", help="make the environments that are missing, with pip")
    parser.add_argument("--slime", type=Path, metavar="DIR", help="a checkout of slime, for the layer of that name")
    parser.add_argument("--output", type=Path, default=Path("runs/exactness/results.json"), help="the JSON file")
    return parser
