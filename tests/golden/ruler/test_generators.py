"""Our generators against RULER's own, in what does not depend on a seed; `make_golden.py` tells the facts' origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ruler.counts import FrequentWords
from benchmarks.ruler.generate import generate
from benchmarks.ruler.sample import SampleKey, TaskFamily
from benchmarks.ruler.tasks import NIAH_TASKS, make_family
from core.types import Task
from tests.golden.ruler import describe
from tests.golden.ruler.make_golden import as_squad

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "generators.json").read_text(encoding="utf-8"))
COUNT = 40


def ruler_prompt(task: Task) -> str:
    """The whole document in one prompt, as RULER lays it out, with its answer prefix."""
    return task.metadata["before"] + task.context + task.metadata["after"] + task.metadata["answer_prefix"]


def family_kind(name: str) -> str:
    return name.partition("_")[0]


@pytest.fixture(scope="module")
def squad(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    items = json.loads((shared_data / "hotpotqa_dev_distractor_75.json").read_text(encoding="utf-8"))
    for item in items:
        item["context"] = list(zip(item["context"]["title"], item["context"]["sentences"], strict=True))
    path = tmp_path_factory.mktemp("squad") / "squad.json"
    path.write_text(json.dumps(as_squad(items)))
    return path


@pytest.fixture(scope="module", params=GOLDEN)
def built(request: pytest.FixtureRequest) -> tuple[str, list[Task]]:
    name = request.param
    options: dict[str, Any] = {}
    if name in NIAH_TASKS:
        options["placement"] = "official"
        if NIAH_TASKS[name]["haystack"] == "essay":
            options["essays"] = request.getfixturevalue("shared_data") / "essays"
    elif name == "qa_1":
        options["squad"] = request.getfixturevalue("squad")
    elif name == "qa_2":
        options["hotpotqa"] = request.getfixturevalue("shared_data") / "hotpotqa_dev_distractor_75.json"
    family: TaskFamily = make_family(name, options)
    assert family.new_tokens == GOLDEN[name]["new_tokens"]
    count = 10 if name.startswith("qa") else COUNT
    return name, list(generate(family, length=GOLDEN[name]["limit"], count=count, tokenizer=describe.tokenize))


def test_template(built: tuple[str, list[Task]]) -> None:
    name, tasks = built
    assert describe.template(family_kind(name), ruler_prompt(tasks[0])) == GOLDEN[name]["template"]


def test_every_sample_has_the_official_facts(built: tuple[str, list[Task]]) -> None:
    name, tasks = built
    official = {key: value for key, value in GOLDEN[name]["facts"].items() if key not in ("words", "ranked")}
    for task in tasks:
        seen = describe.facts(family_kind(name), ruler_prompt(task), list(task.answers))
        assert official.items() <= seen.items()


def test_length_is_exact_within_the_limit_and_no_shorter_than_official(built: tuple[str, list[Task]]) -> None:
    name, tasks = built
    limit = GOLDEN[name]["limit"]
    assert GOLDEN[name]["shortest"] <= GOLDEN[name]["longest"] <= limit
    for task in tasks:
        length = len(describe.tokenize(ruler_prompt(task))) + GOLDEN[name]["new_tokens"]
        assert task.metadata["length"] == length <= limit
        assert length >= min(GOLDEN[name]["shortest"], 0.98 * limit)


@pytest.mark.parametrize("built", NIAH_TASKS, indirect=True)
def test_depths_spread_as_official_ones(built: tuple[str, list[Task]]) -> None:
    name, tasks = built
    official = GOLDEN[name]["depths"]
    ours = sorted(depth for task in tasks for depth in describe.depths(ruler_prompt(task), list(task.answers)))
    assert len(ours) == len(official)
    critical = 1.95 * (2 / len(ours)) ** 0.5
    assert _ks(ours, official) < critical, "Kolmogorov-Smirnov at 0.1%"


def test_fwe_has_the_official_word_counts() -> None:
    facts = GOLDEN["fwe"]["facts"]
    sized = FrequentWords().draw(SampleKey("fwe", "test", 42, 0, GOLDEN["fwe"]["limit"]))
    drafts = (sized.build(units) for units in range(facts["words"], 2 * facts["words"]))
    draft = next(draft for draft in drafts if len(draft.context.split()) >= facts["words"])
    assert describe.facts("fwe", draft.prompt, list(draft.answers)) == facts


def _ks(first: list[float], second: list[float]) -> float:
    def share(values: list[float], bound: float) -> float:
        return sum(value <= bound for value in values) / len(values)

    return max(abs(share(first, bound) - share(second, bound)) for bound in {*first, *second})
