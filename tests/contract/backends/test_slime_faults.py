"""1,000 faults of every kind under the hooks: each rollout ends in time, is counted under its name, and spoils no row.

Half of each group fails. Runs with slime's own Sample where SLIME_ROOT names a checkout, with a stand-in everywhere.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentic.memagent import rollout as memagent
from core.backends.rollouts import NOTES
from core.backends.slime.bridge import SlimeBridge
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.policy.servers import make_server_policy
from core.policy.sglang import ROUTING_HEADER
from core.rewards.answer_grader import is_accepted
from core.rollout.rows import rows_from_groups
from core.text.tokenizer import encode_text
from core.types import Sampling, Task, Trajectory
from tests.contract.backends.scored_memagent import SENTENCE, make_recipe
from tests.contract.backends.slime_settings import rollout_arguments
from tests.unit.backends.slime.standin import SAMPLING, Sample, read_rows

OF_THE_SERVER = {
    "500": "engine",
    "503": "unavailable",
    "400": "bad_request",
    "reset": "unavailable",
    "half a body": "unavailable",
    "truncated json": "bad_reply",
    "html": "bad_reply",
    "wrong count": "bad_reply",
    "no log-probs": "bad_reply",
    "nan": "bad_reply",
    "too many": "bad_reply",
    "no tokens": "bad_reply",
    "odd finish": "bad_reply",
    "huge id": "exception_OverflowError",
    "abort": "aborted",
}
OF_THE_TASK = {
    "no context": "no_context",
    "no question": "bad_task",
    "reward raises": "exception_RuntimeError",
    "reward is nan": "bad_reward",
}
FAULTS = OF_THE_SERVER | OF_THE_TASK
GROUPS = 480
"""Two of four rollouts of each are faulty; forty silent ones make it 1,000."""
SILENT = 40


class FaultyServer:
    """SGLang's /generate. Rollout `fault/...` meets its fault in its last call, over and over; others are served well.

    Rollouts whose session ends in an even number answer right.
    """

    url = ""

    def __init__(self, tokenizer: Any):
        eos = tokenizer.eos_token_id
        self.memory = (*encode_text(tokenizer, " seen"), eos)
        self.answers = [(*encode_text(tokenizer, f"\\boxed{{{word}}}"), eos) for word in ("acorn", "almond")]
        self.served: Counter[str] = Counter()
        self.aborted: list[str] = []

    def completion(self, session: str) -> tuple[int, ...]:
        return self.answers[int(session[-1]) % 2] if self.served[session] else self.memory

    async def generate(self, request: web.Request) -> web.StreamResponse:
        session, body = request.headers[ROUTING_HEADER], await request.json()
        fault = session.partition("/")[0]
        ids = self.completion(session)
        self.served[session] += not self.served[session]
        meta = {"finish_reason": {"type": "stop"}, "completion_tokens": len(ids), "weight_version": "5"}
        meta["output_token_logprobs"] = [[-0.25, i, None] for i in ids]
        if fault == "silence":
            await asyncio.sleep(60)
        if ids == self.memory or fault not in OF_THE_SERVER:
            return web.json_response({"meta_info": meta})
        if fault.isdigit():
            return web.Response(status=int(fault), text="no")
        if fault == "reset":
            assert request.transport is not None
            request.transport.abort()
        if fault == "half a body":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"meta_info": {')
            assert request.transport is not None
            request.transport.close()
            return response
        changes: dict[str, dict[str, Any]] = {
            "wrong count": {"completion_tokens": len(ids) + 1},
            "no log-probs": {"output_token_logprobs": [[i] for i in ids]},
            "nan": {"output_token_logprobs": [[math.nan, i, None] for i in ids]},
            "too many": {
                "output_token_logprobs": [[-0.25, 1, None]] * (body["sampling_params"]["max_new_tokens"] + 1),
                "completion_tokens": body["sampling_params"]["max_new_tokens"] + 1,
            },
            "no tokens": {"output_token_logprobs": [], "completion_tokens": 0},
            "odd finish": {"finish_reason": {"type": "crash"}},
            "huge id": {"output_token_logprobs": [[-0.25, 2**40, None]] * len(ids)},
            "abort": {"finish_reason": {"type": "abort"}},
        }
        text = json.dumps({"meta_info": meta | changes.get(fault, {})})
        return web.Response(text={"truncated json": text[:-9], "html": "<html>"}.get(fault, text))

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()


@pytest.fixture
async def server(tokenizer: Any) -> AsyncIterator[FaultyServer]:
    faulty = FaultyServer(tokenizer)
    app = web.Application()
    app.add_routes([web.post("/generate", faulty.generate), web.post("/abort_request", faulty.abort)])
    running = TestServer(app)
    await running.start_server(shutdown_timeout=0)
    faulty.url = str(running.make_url("")).rstrip("/")
    yield faulty
    await running.close()


@pytest.fixture(params=["stand-in", "slime"])
def sample_type(request: pytest.FixtureRequest) -> type:
    return Sample if request.param == "stand-in" else request.getfixturevalue("slime").Sample


@pytest.fixture(autouse=True)
def quick_retries_and_broken_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.backends.slime.bridge.make_server_policy", partial(make_server_policy, backoff_s=0.01))

    def reward(answer: str | None, answers: Any) -> float:
        if "raises" in answers[-1]:
            raise RuntimeError("the reward is broken")
        return math.nan if "nan" in answers[-1] else is_accepted(answer, answers)

    monkeypatch.setattr(memagent, "is_accepted", reward)


def arguments(recipe: dict[str, Any], url: str, model: Path, slots: int) -> Any:
    return rollout_arguments(recipe, url, model, Path("train.jsonl")), asyncio.Semaphore(slots)


async def run(hooks: SlimeBridge, samples: list[Any], args: Any, slots: asyncio.Semaphore) -> list[Any]:
    """As slime does: so many at once; an exception would be the end of its rollout, and is one of this test."""

    async def one(sample: Any) -> Any:
        async with slots:
            return await hooks.generate(args, sample, SAMPLING)

    try:
        return await asyncio.gather(*map(one, samples))
    finally:
        await hooks.close()


def make_sample(sample_type: type, group: int, member: int, fault: str) -> Any:
    metadata = {"context": "" if fault == "no context" else SENTENCE, "ground_truth": ["acorn", fault or "oak"]}
    prompt = "" if fault == "no question" else "Which?"
    sample = sample_type(group_index=group, index=4 * group + member, prompt=prompt, label="acorn", metadata=metadata)
    sample.session_id = f"{fault}/{group}/{member}"
    return sample


async def healthy(server: FaultyServer, tokenizer: Any, recipe: dict[str, Any]) -> list[Trajectory]:
    """What members 0 and 1 must become, by our own means."""
    method = memagent.build(memagent.SPEC.recipe.model_validate(recipe), tokenizer)
    task = Task("train-0", "Which?", ("acorn", "oak"), SENTENCE)
    trajectories = []
    for answer in server.answers:
        script = iter((server.memory, answer))
        policy = ScriptedPolicy(lambda prompt, sampling, script=script: next(script), logprob=-0.25)
        trajectories.append(await method.rollout(task, Roles({"policy": policy}), Sampling()))
    return trajectories


async def test_a_thousand_faults_and_no_crash(server: Any, sample_type: type, tokenizer: Any, model: Path) -> None:
    recipe = make_recipe(tasks_per_step=GROUPS, deadline_s=100.0)
    recipe["memagent"]["max_final_tokens"] = 20
    names = list(FAULTS)
    faults = [names[group % len(names)] for group in range(GROUPS)]
    samples = [
        make_sample(sample_type, group, member, fault if member > 1 else "")
        for group, fault in enumerate(faults)
        for member in range(4)
    ]
    hooks = SlimeBridge(memagent.SPEC)
    args, slots = arguments(recipe, server.url, model, slots=64)
    done = await run(hooks, samples, args, slots)

    found = Counter(sample.metadata[NOTES]["failure"] for sample in done)
    expected = Counter(FAULTS[fault] for fault in faults for _ in range(2)) + Counter({None: 2 * GROUPS})
    assert found == expected
    for sample in done:
        failed = sample.metadata[NOTES]["failure"] is not None
        assert sample.remove_sample == failed
        assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
        assert (sum(sample.loss_mask) == 0) == failed

    data = hooks.convert(args, done)
    right, wrong = await healthy(server, tokenizer, recipe)
    lost = Trajectory("", (), status="failed", failure="any")
    ours = rows_from_groups([[right, wrong, lost, lost]] * GROUPS, std_normalization=False, split_advantage=False)
    theirs = read_rows(data)
    assert [row for row in theirs if row.trained_tokens] == ours
    assert {row.advantage for row in ours} == {0.5, -0.5}  # the baseline is that of the two that ended well
    assert sum(not row.trained_tokens for row in theirs) == 2 * GROUPS


async def test_silence_ends_at_the_deadline(server: Any, sample_type: type, model: Path) -> None:
    recipe = make_recipe(tasks_per_step=SILENT // 4, deadline_s=0.5)
    samples = [make_sample(sample_type, i // 4, i % 4, "silence") for i in range(SILENT)]
    hooks = SlimeBridge(memagent.SPEC)
    args, slots = arguments(recipe, server.url, model, slots=SILENT)
    async with asyncio.timeout(30):
        done = await run(hooks, samples, args, slots)
    assert Counter(sample.metadata[NOTES]["failure"] for sample in done) == {"deadline": SILENT}
    assert len(server.aborted) == SILENT  # and nothing goes on decoding
    assert hooks.convert(args, done)["loss_masks"] == [[0]] * SILENT
