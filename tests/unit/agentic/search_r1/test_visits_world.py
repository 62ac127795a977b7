"""The `visits` preset: demonstrations choose thing and goal by chance; one search and one visit find what is asked."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Any

from agentic.search_r1.prompts import LOOKED_FOR
from agentic.search_r1.rollout import SPEC, SearchR1
from agentic.search_r1.visits import VISIT, WORLD, write_passages, write_right_turn
from agentic.search_r1.world import TOWNS, make_searcher
from core.data.files import write_records
from core.policy.base import Roles
from core.types import Sampling
from core.worlds import SPLITS
from tests.kit import serve_corpus
from tests.unit.agentic.search_r1.conftest import load

TOKENIZER = WORLD.train_tokenizer()


async def test_one_search_and_one_visit_find_the_answer_in_the_real_index(tmp_path: Any) -> None:
    write_records(tmp_path / "corpus.jsonl", write_passages())
    with serve_corpus(tmp_path / "corpus.jsonl") as url:
        method = SearchR1(load(url, preset="visits"), TOKENIZER)
        searcher = make_searcher(TOKENIZER, write_right_turn)
        for task in [task for split in SPLITS for task in WORLD.draw_tasks(split, 20)]:
            done = await method.rollout(task, Roles({"policy": searcher}), Sampling())
            assert (done.reward, done.metrics["calls_search"], done.metrics["calls_visit"]) == (1.0, 1, 1)
            assert [turn.role for turn in done.turns if turn.trained] == ["act", "act", "summary", "act"]


def test_demonstrations_search_and_look_for_anything_and_sum_up_what_is_looked_for() -> None:
    shown_turns = WORLD.demonstrate(Random(0), SPEC.load("visits"), TOKENIZER)
    visit_form = VISIT.format(r"(\w+)", r"(\w+)", r"(\w+ \w+)", r"(\w+)")
    chosen = Counter[tuple[str, bool]]()
    for _ in range(400):
        question = ""
        for prompt, completion in next(shown_turns):
            text, said = TOKENIZER.decode(prompt), TOKENIZER.decode(completion)
            if LOOKED_FOR in text:
                assert said.split()[0] in text.partition(LOOKED_FOR)[2]
                continue
            question = question or text
            relation, role, thing = re.findall(r"the (\w+) of the (\w+) of the (\w+ \w+)\?", question)[0]
            if said.startswith("<search>") and "<information>" not in text:
                chosen["search", thing in said] += 1
            if said.startswith("<answer>"):
                assert said.removeprefix("<answer> ").removesuffix("</answer>") in TOWNS
            if visited := re.fullmatch(visit_form, said):
                assert (visited[1], visited[2]) == (relation, role)
                assert f"{role} {visited[3]}: " in text
                chosen["goal", visited[4] == relation] += 1
    for what in ("search", "goal"):
        right, wrong = chosen[what, True], chosen[what, False]
        assert 0.4 < right / (right + wrong) < 0.6, (what, right, wrong)
