"""Real clients of the package index against the gateway: what they send back is trained as it was sampled.

    python -m venv ENV && ENV/bin/pip install -r tests/optional/clients/requirements.txt
    python -m tests.optional.clients --python ENV/bin/python [--clients NAME ...]

Every client has conversations with a thinking and a plain model, one and two calls at a time, whole and streamed, under
both histories. Prints a line for each; status 1 if one of them trained a token too many or too few, in another context
than the engine's, in more rows than one, or if an answer came back as edited or foreign.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import get_args

from core.gateway.gateway import Gateway, serve_gateway
from core.gateway.session import FinishedSession, History, SessionSettings
from core.rollout.rows import split_segments, write_segment
from core.types import Completion, Sampling, Trajectory
from tests.unit.gateway.model import RandomModel
from tests.unit.gateway.templates import make_tokenizer

DRIVERS = Path(__file__).with_name("drivers.py")
THOUGHTS, CALLS, TRANSPORTS = ("plain", "thinking"), ("one", "two"), ("whole", "stream")
TEXTS = ("I look  it up.", "And once more:\ncafé \U0001f40e", 'There are "42" horses.')


class ScriptedModel:
    """Calls tools in its first two answers of a session and answers in the third, in tokens of random pieces."""

    def __init__(self) -> None:
        self.writer = RandomModel(make_tokenizer("qwen3"), "hermes", seed=0)
        self.answers: Counter[str] = Counter()
        self.prompts: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
        self.rng = random.Random(0)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        """Answer the next turn of a session, whose name says how."""
        assert session is not None
        turn = min(self.answers[session], 2)
        self.answers[session] += 1
        self.prompts[session].add(tuple(prompt_ids))
        calls = (2 if "two" in session else 1) * (turn < 2)
        text = f"<think>\nthe {turn}. thought\n</think>\n\n" if "thinking" in session else ""
        text += TEXTS[turn]
        for place in range(calls):
            arguments = json.dumps({"query": f"a  b\n\u00e9 {place}", "count": place}, ensure_ascii=place == 0)
            text += f'\n<tool_call>\n{{"name" :"search",  "arguments": {arguments}}}\n</tool_call>'
        ids = (*self.writer.encode(text), self.writer.tokenizer.eos_token_id)
        return Completion(ids, (-0.5,) * len(ids), "stop")


def check(finished: FinishedSession, prompts: set[tuple[int, ...]]) -> tuple[str, bool]:
    """Describe a session and say whether its rows are exact."""
    rows = [write_segment(s) for s in split_segments(Trajectory("t", finished.turns), "segment")]
    sampled = sum(len(turn.completion.token_ids) for turn in finished.turns)
    trained = sum(sum(mask) for _, mask, _ in rows)
    wrong = 0
    for tokens, mask, _ in rows:
        start = len(tokens) - len(mask)
        begins = [i for i, m in enumerate(mask) if m and (i == 0 or not mask[i - 1])]
        wrong += sum(tokens[: start + begin] not in prompts for begin in begins)
    counters = ", ".join(f"{name} {number}" for name, number in sorted(finished.counters.items()))
    strange = sum(finished.counters.get(name, 0) for name in ("edited", "foreign"))
    exact = trained == sampled > 0 and not wrong and not strange and len(finished.turns) >= 3
    return f"{trained:4} of {sampled:4} tokens, {len(rows)} rows, {wrong} wrong contexts; {counters}", exact


async def run_client(python: str, client: str) -> bool:
    """Run all conversations of one client; return whether all were exact."""
    exact = True
    async with AsyncExitStack() as stack:
        for history in get_args(History):
            model = ScriptedModel()
            settings = SessionSettings(max_context=100_000, history=history)
            gateway = Gateway({"policy": model}, model.writer.tokenizer, settings)
            url = await stack.enter_async_context(serve_gateway(gateway))
            names = ["-".join(parts) for parts in itertools.product(THOUGHTS, CALLS, TRANSPORTS)]
            for name in names:
                gateway.open_session(name, Sampling(max_new_tokens=4096))
            process = await asyncio.create_subprocess_exec(
                python,
                str(DRIVERS),
                client,
                url,
                *names,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            output, errors = await process.communicate()
            failures = dict(line.split("\t", 1) for line in output.decode().splitlines() if "\t" in line)
            if process.returncode:
                print(errors.decode()[-2000:])
            for name in names:
                described, fine = check(await gateway.finish_session(name), model.prompts[name])
                exact &= fine
                mark = "ok   " if fine else "WRONG"
                print(f"{mark} {client:22} {history:8} {name:20} {described} {failures.get(name, '')}", flush=True)
    return exact


async def run(python: str, clients: Sequence[str]) -> int:
    return 0 if all([await run_client(python, client) for client in clients]) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.optional.clients")
    parser.add_argument("--python", required=True, help="the interpreter of an environment with requirements.txt")
    parser.add_argument("--clients", nargs="+", help="functions of drivers.py; default: all")
    options = parser.parse_args()
    known = [
        line.split("(")[0][4:]
        for line in DRIVERS.read_text().splitlines()
        if line.endswith("(url: str, stream: bool) -> None:")
    ]
    return asyncio.run(run(options.python, options.clients or known))


if __name__ == "__main__":
    sys.exit(main())
