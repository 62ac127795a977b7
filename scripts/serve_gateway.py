"""Serves a gateway to any program: `tokentrue serve gateway --model PATH_OR_HUB_ID [--policy-url URL] [--record DIR]`.

A session opens with its first request to `/s/NAME/v1`, and `POST /s/NAME/finish` returns its turns and training rows.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import PositiveFloat, PositiveInt

from core.engine import EmbeddedPolicy, Engine, weights
from core.gateway import (
    KEPT_CLOSED,
    MAX_IDLE_S,
    MAX_KEPT_TOKENS,
    FinishedSession,
    Gateway,
    History,
    SessionSettings,
    serve_gateway,
)
from core.hub import resolve
from core.options import Device, argparse_type, make_command_parser, show_errors
from core.policy.base import Policy
from core.policy.servers import make_server_policy
from core.rollout.rows import make_rows
from core.runs.files import JsonlLog, Record, hold_lock, read_jsonl
from core.runs.record import RolloutLog, TrainedRow, read_rollouts, record_rollout
from core.serving import add_address_options, listen, read_api_key
from core.text.tokenizer import Tokenizer, load_tokenizer, token_bytes
from core.types import Task, Trajectory


@show_errors(ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        asyncio.run(run(options))
    except KeyboardInterrupt:
        return 130
    return 0


async def run(options: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    api_key = read_api_key(options.host, options.api_key_file)
    with listen(options.host, options.port) as listener, hold_record(options.record):
        if options.policy_key_file is not None and options.policy_url is None:
            raise ValueError("--policy-key-file goes with --policy-url, the server that takes the key")
        folder = resolve(options.model, weights=options.policy_url is None)
        tokenizer = load_tokenizer(folder)
        context = options.max_context or weights.load_config(folder).max_positions
        settings = SessionSettings(max_context=context, history=options.history, max_idle_s=options.max_idle_s)
        record, recorded = open_record(options.record, tokenizer)
        async with open_policy(options, folder, tokenizer, context) as policy:
            gateway = Gateway(
                {"policy": policy},
                tokenizer,
                settings,
                open_on_request=True,
                on_finish=record,
                closed=recorded,
                max_kept_tokens=options.max_kept_tokens,
                api_key=api_key,
            )
            async with serve_gateway(gateway, listener):
                host, port = listener.getsockname()[:2]
                print(f"serving {options.model} on http://{host}:{port}", flush=True)
                await asyncio.Event().wait()


def hold_record(folder: Path | None) -> AbstractContextManager[None]:
    """Hold a folder for one gateway: a second one would cut off what the first is writing."""
    if folder is None:
        return nullcontext()
    told = f"--record {folder}: another gateway records there; give a folder of its own"
    return hold_lock(folder / ".lock", held=ValueError(told))


def open_record(
    folder: Path | None, tokenizer: Tokenizer
) -> tuple[Callable[[FinishedSession, Mapping[str, Any]], None] | None, Iterable[str]]:
    """Return what appends a finished session to a folder, and the names of the last sessions that are there.

    It writes the record, then `sessions.jsonl`. A client whose gateway was killed asks to finish again, and learns from
    the names whether its session was recorded; one that the kill left in the record alone counts as recorded too.
    """
    if folder is None:
        return None, ()
    sessions = JsonlLog(folder / "sessions.jsonl")
    names = deque((str(record["session"]) for record in read_jsonl(sessions.path)), KEPT_CLOSED)
    rollouts = RolloutLog(folder / "rollouts.jsonl.gz", partial(token_bytes, tokenizer))
    count = 0
    for recorded in read_rollouts(rollouts.path):
        count, last = count + 1, recorded.task_id
    if count and last not in names:
        names.append(last)

    def append(finished: FinishedSession, written: Mapping[str, Any]) -> None:
        nonlocal count
        rollouts.append([record_session(finished, count)])
        rollouts.sync()
        count += 1
        sessions.append({"session": finished.session_id, **written})
        sessions.sync()  # the reply says that it is written

    return append, names


def record_session(finished: FinishedSession, group: int) -> Record:
    """Return a session as a line of the record (core/runs/record.py): a group of its own, without a reward."""
    trajectory = Trajectory(
        finished.session_id, finished.turns, metrics=finished.counters, log={"wire": list(finished.events)}
    )
    rows = [TrainedRow(row) for row in make_rows(finished.turns, "segment")]
    return record_rollout("train", 0, group, Task(finished.session_id, "", ()), trajectory, rows)


def open_policy(
    options: argparse.Namespace, folder: Path, tokenizer: Tokenizer, context: int
) -> AbstractAsyncContextManager[Policy]:
    """Open the model in this process, or the server that has it, for a `with` block."""
    if options.policy_url is not None:
        # No rollout bounds a call here; while one runs, its session is not idle.
        key = options.policy_key_file
        return make_server_policy(options.policy_url, timeout_s=options.max_idle_s, api_key_file=key)
    engine = Engine.from_pretrained(
        folder,
        dtype=options.dtype,
        device=options.device,
        max_model_len=context,
        kv_tokens=max(options.kv_tokens, context),
        decode=tokenizer.decode,
    )
    return EmbeddedPolicy(engine, threaded=True)


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser(
        "serve gateway", "Serve OpenAI's and Anthropic's protocols, and keep the exact tokens of each session."
    )
    parser.add_argument("--model", required=True, help="folder or hub id; with --policy-url for its tokenizer alone")
    parser.add_argument("--policy-url", help="a server that has the model; vllm+http://... is vLLM's")
    parser.add_argument("--policy-key-file", type=Path, metavar="FILE", help="holds the API key of that server")
    add_address_options(parser, 30010)
    parser.add_argument("--record", type=Path, metavar="DIR", help="append finished sessions to DIR")
    parser.add_argument(
        "--history",
        choices=get_args(History),
        default="sampled",
        help="thoughts of earlier answers in the next prompt: all of them, or those that the chat template shows",
    )
    parser.add_argument(
        "--max-kept-tokens",
        type=argparse_type(PositiveInt),
        default=MAX_KEPT_TOKENS,
        help="tokens of all open sessions together; beyond, a new session gets 503, and beyond twice as many all do",
    )
    parser.add_argument("--max-context", type=argparse_type(PositiveInt), help="tokens of prompt and completion")
    parser.add_argument(
        "--max-idle-s",
        type=argparse_type(PositiveFloat),
        default=MAX_IDLE_S,
        help="seconds without a request after which a session is finished, and recorded with --record",
    )
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", type=argparse_type(Device), default="auto")
    parser.add_argument("--kv-tokens", type=argparse_type(PositiveInt), default=65536)
    return parser
