"""The presets are what their sources say, and a section that cannot work is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentic.toolorchestra.config import PRESETS, load_recipe
from agentic.toolorchestra.environment import make_worlds
from agentic.toolorchestra.experts import Experts, Models
from core.config import RecipeError
from core.policy.base import Roles
from core.types import Task
from tests.unit.agentic.toolorchestra.conftest import recipe


@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_a_preset_says_what_it_follows_and_where_it_departs(preset: str) -> None:
    loaded = load_recipe(preset)
    assert (loaded.method, loaded.preset) == ("toolorchestra", preset)
    assert loaded.departures
    with pytest.raises(RecipeError, match=r"TAU2/bin/python: no such program.*toolorchestra\.environment=null"):
        make_worlds(loaded.toolorchestra.environment)
    models = set(loaded.toolorchestra.model_mapping.values())
    assert models == set(loaded.toolorchestra.models) - {"judge"}
    assert set(loaded.toolorchestra.aliases) == set(loaded.toolorchestra.model_mapping)


def test_seed_is_slime_agentics_readme() -> None:
    """facts/toolorchestra_tau2.md, section 0."""
    loaded = load_recipe("seed")
    section, algorithm = loaded.toolorchestra, loaded.algorithm
    assert (section.max_turns, loaded.rollout.deadline_s, section.thinking, section.max_tokens) == (
        12,
        360,
        True,
        16384,
    )
    assert (loaded.rollout.tasks_per_step, loaded.rollout.group_size, algorithm.num_steps_per_rollout) == (32, 8, 2)
    assert (algorithm.advantage_clip, algorithm.min_group_std, algorithm.std_normalization) == (3.0, 0.1, True)
    assert (algorithm.loss_agg, algorithm.split_advantage, algorithm.rows) == ("turn", False, "turn")
    assert (section.mask_malformed, section.mask_unanswered, section.reward) == (True, True, "preference")
    assert section.search["url"] == "http://127.0.0.1:8000/retrieve"
    experts = {name: model for name, model in section.models.items() if name != "judge"}
    assert [m.url for m in experts.values()] == [f"http://127.0.0.1:{30000 + i}/v1" for i in range(1, 8)]
    assert {(m.max_tokens, m.temperature, m.timeout_s) for m in experts.values()} == {(8192, 0.7, 180)}
    assert set(section.tools) == {"search", "enhance_reasoning", "answer"}


def test_paper_is_the_papers_tables() -> None:
    """facts/toolorchestra_tau2.md, sections 1.2 and 1.4."""
    loaded = load_recipe("paper")
    section, algorithm, budget = loaded.toolorchestra, loaded.algorithm, loaded.toolorchestra.budget
    assert (loaded.rollout.tasks_per_step, loaded.rollout.group_size, loaded.rollout.temperature) == (16, 8, 1.0)
    assert (section.max_turns, section.max_tokens, loaded.run.eval_temperature) == (50, 8000, 0.0)
    assert (budget.attempts, budget.code, budget.total, budget.document_characters) == (8000, 16000, 24000, 4000)
    assert (algorithm.clip_ratio_low, algorithm.clip_ratio_high, algorithm.clip_ratio_c) == (0.2, 0.28, 10.0)
    assert (algorithm.kl_loss_coef, algorithm.kl_loss_type, algorithm.loss_agg) == (1e-4, "k2", "token")
    price = {alias: section.models[model].price for alias, model in section.model_mapping.items()}
    told = {alias: (p.input, p.output) for alias, p in price.items() if p is not None}
    assert told == {
        "reasoner-1": (1.25, 10), "reasoner-2": (0.25, 2), "reasoner-3": (0.8, 0.8),
        "search-1": (1.25, 10), "search-2": (0.25, 2), "search-3": (0.8, 0.8),
        "answer-1": (1.25, 10), "answer-2": (0.25, 2), "answer-3": (0.9, 0.9), "answer-4": (0.8, 0.8),
        "answer-math-1": (0.9, 0.9), "answer-math-2": (0.2, 0.2),
        "expert-1": (1.25, 10), "expert-2": (0.25, 2), "expert-3": (0.8, 0.8),
    }  # fmt: skip


def test_seeds_records_are_priced_by_the_token(tokenizer: Any) -> None:
    """6e-7 stands there as `input_tokens_per_million`, and slime-agentic multiplies it by tokens as it is."""
    section = load_recipe("seed").toolorchestra
    pricing = {"input_tokens_per_million": 6e-7, "output_tokens_per_million": 1.2e-6}
    record = {"model_mapping": {"answer-1": "Qwen/Qwen3-32B"}, "tool_pricing": {"Qwen/Qwen3-32B": pricing}}
    models = Models(section, tokenizer).of(Roles({}))
    priced = Experts(models, Task("t", "?", ("1",), metadata=record)).price("answer-1")
    assert (priced.input, priced.output) == pytest.approx((0.6, 1.2))
    assert Experts(models, Task("t", "?", ("1",))).price("answer-1") == priced, "a record without prices"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tools": {"search": ["search-1"]}}, "tools.answer is missing"),
        ({"tools": {"call_expert": [], "answer": []}}, "tools.call_expert has no expert"),
        ({"search": {}}, "search.url is missing"),
        ({"judge": "gpt-9"}, "judge is 'gpt-9'"),
        ({"model_mapping": {"answer-1": "gpt-9"}}, "model_mapping.answer-1 is 'gpt-9'"),
        ({"models": {"a": {}}, "model_mapping": {}}, "either url"),
        ({"models": {"a": {"url": "http://a", "role": "frozen"}}, "model_mapping": {}}, "either url"),
        ({"models": {"a": {"role": "none"}}, "model_mapping": {}}, "models.a.role is 'none'"),
        ({"preference": {"cost": 2.0}}, "less than or equal to 1"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**changes)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean toolorchestra\.max_turns"):
        load_recipe("seed", ["toolorchestra.max_turn=3"])


def test_every_preset_is_a_recipe() -> None:
    """But for files of services, which start what a preset needs."""
    names = {path.stem for path in PRESETS.glob("*.yaml") if not path.stem.endswith(".services")}
    assert {"seed", "paper"} <= names
    for name in names:
        assert load_recipe(name).method == "toolorchestra"
