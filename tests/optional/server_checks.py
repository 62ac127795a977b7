"""What is shown of a live server (SGLang, vLLM); each check returns its figures."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch

from agentic.memagent.rollout import SPEC, MemAgent
from benchmarks.ruler.eval_data import ruler_data
from core.engine import weights
from core.engine.model import CausalLM
from core.policy.base import Roles
from core.policy.http_policy import HTTPPolicy
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Runner
from core.text.tokenizer import load_tokenizer
from core.train.packing import pack_rows
from core.types import Completion, Row, Sampling

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Result:
    what: str
    seen: str
    holds: bool


def show(results: Sequence[Result]) -> list[bool]:
    """Print results; return for each whether it held."""
    for result in results:
        print(f"{'ok  ' if result.holds else 'FAIL'}  {result.what:<56} {result.seen}", flush=True)
    return [result.holds for result in results]


async def logprobs(policy: HTTPPolicy, model: Path) -> list[Result]:
    """The server's log-probs of what it sampled, against our model's."""
    network = weights.load(model, device="cpu")
    results = []
    for temperature in (1.0, 0.7):
        rows, _ = await sampled(policy, network, temperature)
        results.append(compared(f"log-probs at temperature {temperature:g}", network, rows, temperature))
    return results


async def stop_texts(policy: HTTPPolicy, model: Path) -> list[Result]:
    """Greedy calls again with a stop text out of their middle: the same tokens, through the one that completes it."""
    tokenizer, greedy = load_tokenizer(model), Sampling(temperature=0.0, max_new_tokens=40)
    prompts = random_prompts(weights.load_config(model).vocab_size)
    right = []
    for free, prompt in [(await policy.generate(prompt, greedy), prompt) for prompt in prompts]:
        text = tokenizer.decode(free.token_ids[8:12])[1:-1]
        if len(text) < 3 or not text.isascii():
            continue
        end = next(n for n in range(41) if text in tokenizer.decode(free.token_ids[:n]))
        stopped = await policy.generate(prompt, replace(greedy, stop=(text,)))
        right.append((stopped.token_ids, stopped.finish_reason) == (free.token_ids[:end], "stop"))
    holds = len(right) > 4 and all(right)
    return [Result("a stop text ends a call and is kept", f"{sum(right)} of {len(right)} calls", holds)]


async def memagent_rollout(policy: HTTPPolicy, model: Path) -> list[Result]:
    """MemAgent on RULER needles through the server: what became of each rollout, and the rows made of them."""
    recipe, tokenizer = SPEC.load("tiny"), load_tokenizer(model)
    method = MemAgent(recipe.memagent, tokenizer)
    data = ruler_data("niah", {}, tiny=True, lengths=[448], tokenizer=tokenizer, split="validation")
    runner = Runner(method, Roles({"policy": policy}), concurrency=32, deadline_s=120)
    groups = await runner.run_groups(list(data.tasks(448, 0, 4)), 4, Sampling(), seed=0)
    rollouts = [trajectory for group in groups for trajectory in group]
    turns = [turn for trajectory in rollouts for turn in trajectory.turns]
    rows = rows_from_groups(groups, std_normalization=False, split_advantage=False)

    carried = [
        contains(after.prompt_ids, tuple(i for i in before.completion.token_ids if i not in method.special))
        for trajectory in rollouts
        for before, after in pairwise(trajectory.turns)
    ]
    whole = [
        row.tokens == (*turn.prompt_ids, *turn.completion.token_ids)
        and row.loss_mask == (1,) * len(turn.completion.token_ids)
        and row.logprobs == turn.completion.logprobs
        for row, turn in zip(rows, turns, strict=True)
    ]
    failed = [trajectory.failure for trajectory in rollouts if trajectory.status == "failed"]
    return [
        Result("MemAgent rollouts, none failed", f"{len(rollouts)} rollouts, failures {failed}", not failed),
        Result("the next prompt holds the memory as sampled", f"{sum(carried)} of {len(carried)} turns", all(carried)),
        Result("rows are prompt + completion, mask 1, its log-probs", f"{sum(whole)} of {len(whole)} rows", all(whole)),
        compared("MemAgent rows' log-probs", weights.load(model, device="cpu"), rows, temperature=1.0),
    ]


async def new_weights(policy: HTTPPolicy, first: Path, second: Path) -> list[Result]:
    """The server after it got weights: log-probs of the second checkpoint, and no longer of the first."""
    started = time.perf_counter()
    await policy.update_weights(second, "second", limit_s=120)
    seconds = time.perf_counter() - started
    network = weights.load(second, device="cpu")
    rows, versions = await sampled(policy, network, temperature=1.0)
    away = largest_gap(weights.load(first, device="cpu"), rows, temperature=1.0)
    return [
        Result("version of the new weights", f"{versions}, {1000 * seconds:.0f} ms", versions == {"second"}),
        compared("log-probs of the second checkpoint", network, rows, temperature=1.0),
        Result("and not of the first", f"largest gap {away:.2g}", away > 100 * TOLERANCE),
    ]


async def aborts(
    policy: HTTPPolicy, budget: int, count_held: Callable[[], Awaitable[int]], abort_all: Callable[[], Awaitable[None]]
) -> list[Result]:
    """Calls of `budget` tokens, on a model without an end: one to its end, one cancelled, four ended by `abort_all`."""
    long = Sampling(max_new_tokens=budget)

    async def until_running(number: int) -> None:
        async with asyncio.timeout(120):
            while await count_held() != number:
                await asyncio.sleep(0.005)

    started = time.perf_counter()
    await policy.generate([1], long)
    full = time.perf_counter() - started

    call = asyncio.create_task(policy.generate([2], long))
    await until_running(1)
    started = time.perf_counter()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until_running(0)
    idle = time.perf_counter() - started

    calls = [asyncio.create_task(policy.generate([3 + n], long)) for n in range(4)]
    await until_running(4)
    await abort_all()
    ended = await asyncio.gather(*calls)
    await until_running(0)
    reasons, most = {c.finish_reason for c in ended}, max(len(c.token_ids) for c in ended)
    all_ended = reasons == {"abort"} and most < budget
    return [
        Result("a cancelled call leaves the worker", f"{idle:.2f} s; to its end {full:.1f} s", idle < full / 4),
        Result("abort_all ends four calls", f"{reasons}, {most} of {budget} tokens", all_ended),
    ]


def contract(name: str, option: str, url: str) -> Result:
    """The policy contract suite on a live server, which `option` names to it: `sglang` or `vllm`."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", option, "tests/contract/test_policy.py"]
    done = subprocess.run([*command, f"--{option}-url", url], capture_output=True, text=True)
    if done.returncode:
        print(done.stdout)
    return Result(f"contract suite on {name}", done.stdout.splitlines()[-1], done.returncode == 0)


def perturb(model: Path, folder: Path) -> Path:
    """A second checkpoint: `model` with noise on every weight."""
    network = weights.load(model, device="cpu")
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    weights.save(network, folder, like=model)
    return folder


async def sampled(policy: HTTPPolicy, network: CausalLM, temperature: float) -> tuple[list[Row], set[str]]:
    """Rows sampled from random prompts, and the weight versions that they name."""
    prompts = random_prompts(network.config.vocab_size)
    sampling = Sampling(temperature=temperature, max_new_tokens=64)
    completions = await asyncio.gather(*(policy.generate(prompt, sampling) for prompt in prompts))
    rows = [row_of(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    return rows, {completion.weight_version for completion in completions}


def random_prompts(vocab_size: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(vocab_size) for _ in range(length)] for length in (1, 2, 7, 30, 64, 65, 150, 300)]


def row_of(prompt: Sequence[int], completion: Completion) -> Row:
    mask = (1,) * len(completion.token_ids)
    return Row((*prompt, *completion.token_ids), mask, completion.logprobs, advantage=0.0, rollout_id=0)


def compared(what: str, network: CausalLM, rows: Sequence[Row], temperature: float) -> Result:
    gap, tokens = largest_gap(network, rows, temperature), sum(row.trained_tokens for row in rows)
    return Result(f"{what} within {TOLERANCE:g} of ours", f"largest gap {gap:.2g}, {tokens} tokens", gap < TOLERANCE)


@torch.no_grad()
def largest_gap(network: CausalLM, rows: Sequence[Row], temperature: float) -> float:
    """The largest difference between a row's log-prob and the one that `network` gives the same token."""
    gaps = []
    for pack in pack_rows(rows, 16384, network.device):
        logits_RV = network.logits(network(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R))
        ours = torch.log_softmax(logits_RV / temperature, dim=-1).gather(1, pack.targets_R[:, None]).squeeze(1)
        theirs = pack.gather([row.logprobs for row in rows], [row.loss_mask for row in rows])
        gaps.append(float((ours - theirs).abs().max()))
    return max(gaps)


def contains(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(ids[i : i + len(part)]) == tuple(part) for i in range(len(ids) - len(part) + 1))
