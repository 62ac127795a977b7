"""Real clients of the package index against the gateway: what they send back is trained as it was sampled.

    python -m venv ENV && ENV/bin/pip install -r tests/optional/clients/requirements.txt
    python -m tests.optional.clients --python ENV/bin/python [--clients NAME ...]

Strands needs an environment of its own, with requirements-strands.txt, and `--clients strands_chat strands_anthropic`.

Every client has conversations with a thinking and a plain model, one and two calls at a time, whole and streamed, under
both histories. Prints a line for each; status 1 if one of them trained a token too many or too few, in another context
than the engine's, in more rows than one, or if an answer came back as edited or foreign.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import get_args

from core.gateway import Gateway, History, SessionSettings, serve_gateway
from core.types import Sampling
from tests.optional.clients.drivers import CLIENTS
from tests.optional.clients.scripted import ScriptedModel, check

DRIVERS = Path(__file__).with_name("drivers.py")
THOUGHTS, CALLS, TRANSPORTS = ("plain", "thinking"), ("one", "two"), ("whole", "stream")


async def run_client(python: str, client: str) -> bool:
    """Run all conversations of one client; return whether all were exact."""
    exact = True
    names = ["-".join(parts) for parts in itertools.product(THOUGHTS, CALLS, TRANSPORTS)]
    async with AsyncExitStack() as stack:
        for history in get_args(History):
            model = ScriptedModel()
            settings = SessionSettings(max_context=100_000, history=history)
            gateway = Gateway({"policy": model}, model.writer.tokenizer, settings)
            url = await stack.enter_async_context(serve_gateway(gateway))
            for name in names:
                gateway.open_session(name, Sampling(max_new_tokens=4096))
            failures = await run_driver(python, client, url, names)
            for name in names:
                described, fine = check(await gateway.finish_session(name), model.prompts[name])
                exact &= fine
                mark = "ok   " if fine else "WRONG"
                print(f"{mark} {client:22} {history:8} {name:20} {described} {failures.get(name, '')}", flush=True)
    return exact


async def run_driver(python: str, client: str, url: str, names: Sequence[str]) -> dict[str, str]:
    """Run the client in its own environment; return what failed in which conversation."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(python, str(DRIVERS), client, url, *names, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    if process.returncode:
        print(errors.decode()[-2000:])
    return dict(line.split("\t", 1) for line in output.decode().splitlines() if "\t" in line)


async def run(python: str, clients: Sequence[str]) -> int:
    return 0 if all([await run_client(python, client) for client in clients]) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.optional.clients")
    parser.add_argument("--python", required=True, help="the interpreter of an environment with requirements.txt")
    parser.add_argument("--clients", nargs="+", help="functions of drivers.py; default: all but Strands")
    options = parser.parse_args()
    clients = options.clients or [name for name in CLIENTS if "strands" not in name]
    return asyncio.run(run(options.python, clients))


if __name__ == "__main__":
    sys.exit(main())
