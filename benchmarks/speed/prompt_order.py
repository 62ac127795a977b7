"""Count the tokens that the engine prefills per trajectory under MemAgent's two prompt orders, in groups of 16.

    tokentrue speed prompt-order [--out runs/speed/prompt_order.json]

A random tiny policy writes memories up to the full budget. Its temperature is so high that no two members of a group
write the same memory; equal memories would be shared under both orders. Sizes are an eighth of the paper's: chunks of
5000 tokens, memories of 1024 (full) or 300 (as they really are), and a document of 24 chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path

from agentic.memagent.config import MemAgentSection
from agentic.memagent.prompts import Order
from agentic.memagent.rollout import MemAgent
from agentic.memagent.tiny import start_model
from agentic.memagent.tiny.words import NOISE
from core.engine import EmbeddedPolicy, Engine
from core.policy.base import Roles
from core.rollout.runner import Runner
from core.runs.files import write_json
from core.text.tokenizer import load_tokenizer
from core.types import Sampling, Task

CHUNK, MEMORIES, CHUNKS, GROUP, TASKS = 625, (128, 38), 24, 16, 1


async def count_prefilled_tokens(folder: Path, order: Order, memory: int) -> float:
    """Return the tokens prefilled per trajectory, as the engine counts them."""
    tokenizer = load_tokenizer(folder)
    config = MemAgentSection(
        chunk_tokens=CHUNK, max_memory_tokens=memory, max_final_tokens=8, prompt_style="compact", prompt_order=order
    )
    engine = Engine.from_pretrained(folder, device="cpu", max_model_len=1024, kv_tokens=1024 * GROUP * TASKS)
    policy = EmbeddedPolicy(engine)
    runner = Runner(MemAgent(config, tokenizer), Roles({"policy": policy}), concurrency=GROUP * TASKS, deadline_s=3600)
    rng = random.Random(0)
    tasks = [
        Task(str(i), start_model.QUESTION.format(key="apple"), ("owl",), " ".join(rng.choices(NOISE, k=CHUNK * CHUNKS)))
        for i in range(TASKS)
    ]
    groups = await runner.run_groups(tasks, GROUP, Sampling(temperature=3.0), seed="prompt order")
    await policy.close()
    assert all(trajectory.status != "failed" for group in groups for trajectory in group)
    return engine.stats().prefilled_tokens / (GROUP * TASKS)


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = start_model.build(Path(temporary) / "model", seed=0)
        for memory in MEMORIES:
            official = asyncio.run(count_prefilled_tokens(folder, "official", memory))
            friendly = asyncio.run(count_prefilled_tokens(folder, "prefix_friendly", memory))
            rows.append(
                {"memory": memory, "official": official, "prefix_friendly": friendly, "ratio": official / friendly}
            )
            print(json.dumps(rows[-1]))
    write_json(options.out, {"chunk": CHUNK, "chunks": CHUNKS, "group": GROUP, "rows": rows})
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokentrue speed prompt-order", description="Prefilled tokens under MemAgent's prompt orders."
    )
    parser.add_argument("--out", type=Path, default=Path("runs/speed/prompt_order.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
