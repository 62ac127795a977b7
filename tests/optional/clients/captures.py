"""Other projects' capture layers against our engine's server and our gateway, each with its own unmodified client.

    python3.12 -m venv ENV && ENV/bin/pip install --no-deps -r tests/optional/clients/requirements-captures.txt
    python -m tests.optional.clients.captures --python ENV/bin/python --model FOLDER [--layers NAME ...]

The engine has the real weights of FOLDER (`tokentrue data smollm2 --out FOLDER` makes one). Each layer has a
conversation of three turns. Prints a line for each; status 1 if a captured prompt, answer or log-prob is not the
engine's own, or if a turn is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.exactness.layers import ROOT
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server
from core.gateway import Gateway, SessionSettings, serve_gateway
from core.text.tokenizer import load_tokenizer
from core.types import Completion, Sampling
from tests.kit import serve_here

DRIVERS = Path(__file__).with_name("capture_drivers.py")
TURNS = {"verifiers": 6, "openenv": 3, "rllm": 6, "agentlightning": 3, "harbor": 3}
"""Maps a layer to the turns that its driver has in all."""


class LoggedPolicy(EmbeddedPolicy):
    """Keeps every prompt that the engine had, and what it sampled."""

    def __init__(self, engine: Engine):
        super().__init__(engine, threaded=True)
        self.log: list[tuple[list[int], Completion]] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None, request_id: str | None = None
    ) -> Completion:
        completion = await super().generate(prompt_ids, sampling, session, request_id)
        self.log.append((list(prompt_ids), completion))
        return completion


def check(layer: str, captured: dict[str, Any], log: Sequence[tuple[list[int], Completion]]) -> str:
    """Return what is wrong with what a layer captured, or ""."""
    sampled = {(tuple(prompt), each.token_ids): each.logprobs for prompt, each in log}
    turns = captured["turns"]
    if len(turns) != TURNS[layer]:
        return f"{len(turns)} turns instead of {TURNS[layer]}"
    for number, (prompt, ids, logprobs) in enumerate(turns, 1):
        engines = sampled.get((tuple(prompt), tuple(ids)))
        if engines is None:
            return f"turn {number}: the engine never had this prompt and gave this answer"
        if list(engines) != logprobs:
            return f"turn {number}: other log-probs than the engine's"
    if captured["trained"] != sum(len(ids) for _, ids, _ in turns):
        return f"{captured['trained']} tokens trained of {sum(len(ids) for _, ids, _ in turns)}"
    return ""


async def run_layer(python: str, layer: str, model: Path) -> bool:
    """Start both servers with the model, run the layer's driver, and return whether all it captured is exact."""
    tokenizer = load_tokenizer(model)
    engine = Engine.from_pretrained(model, max_model_len=1024, kv_tokens=8192, decode=tokenizer.decode)
    policy = LoggedPolicy(engine)
    app = Server(policy, "model", tokenizer).app()
    gateway = Gateway({"policy": policy}, tokenizer, SessionSettings(max_context=1024), open_on_request=True)
    async with serve_here(app) as engine_url, serve_gateway(gateway) as url:
        process = await asyncio.create_subprocess_exec(
            python, str(DRIVERS), layer, engine_url, url, str(model.resolve()),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        output, errors = await process.communicate()
    if process.returncode:
        print(f"WRONG {layer:15} {errors.decode()[-2000:]}")
        return False
    captured = json.loads(output.decode().splitlines()[-1])
    problem = check(layer, captured, policy.log)
    shown = f"{len(captured['turns'])} turns, {captured['trained']} sampled tokens"
    print(f"{'WRONG' if problem else 'ok   '} {layer:15} {problem or shown}", flush=True)
    return not problem


async def run(python: str, layers: Sequence[str], model: Path) -> int:
    return 0 if all([await run_layer(python, layer, model) for layer in layers]) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.optional.clients.captures")
    parser.add_argument("--python", required=True, help="the interpreter of an environment with the layers")
    parser.add_argument("--model", required=True, type=Path, help="a checkpoint folder with a chat template")
    parser.add_argument("--layers", nargs="+", choices=TURNS, default=list(TURNS))
    options = parser.parse_args()
    return asyncio.run(run(options.python, options.layers, options.model))


if __name__ == "__main__":
    sys.exit(main())
