"""Random agents over all three protocols: each sampled token is trained once, in its own context, or not at all."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from .agents import ACTIONS, ECHOES, KEEPING, FuzzedAgent
from .model import RandomModel, check, open_session
from .templates import FORMATS, TEMPLATES, make_tokenizer


@pytest.mark.parametrize("history", ["sampled", "template"])
async def test_fuzzed_agents_train_each_sampled_token_once_in_its_own_context(history, fuzz_cases):
    seen: Counter[str] = Counter()
    for seed in range(fuzz_cases // 10):
        rng = random.Random(f"{history} {seed}")
        name = rng.choice(list(TEMPLATES))
        model = RandomModel(make_tokenizer(name), FORMATS[name], seed=seed)
        session = open_session(model, history=history)
        echoes = KEEPING if rng.random() < 0.5 else ECHOES
        crew: list[FuzzedAgent] = []
        for number in range(rng.choice([1, 1, 2])):
            FuzzedAgent(session, crew, rng, echoes, f"begin {number}")
        for _ in range(rng.choice([4, 8, 24])):
            await rng.choice(crew).step(rng.choice(ACTIONS))
        finished = session.finish()
        assert all(len(turn.completion.token_ids) for turn in finished.turns)
        rows = check(model, finished.turns)
        if history == "sampled":
            assert rows <= sum(agent.chains for agent in crew), seed
        counters = Counter(finished.counters)
        untrained = sum(not turn.trained for turn in finished.turns)
        assert untrained == counters["retried"] + counters["unanswered"], (seed, counters)
        if echoes is KEEPING:
            assert counters["edited"] == counters["foreign"] == 0, (seed, counters)
        did = sum((agent.seen for agent in crew), Counter())
        did["three compactions"] = did["summarise"] + did["compact"] >= 3
        seen += did
    # A generator that never does a thing proves nothing about it.
    wanted = {*ACTIONS, *ECHOES, "depth 1", "depth 2", "three compactions"}
    assert not wanted - seen.keys()
