"""The presets are what their sources say, and a section that cannot work is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentic.toolorchestra.environment import make_environment_factory
from agentic.toolorchestra.experts import Experts, ModelPool
from agentic.toolorchestra.rollout import SPEC
from core.config import RecipeError
from core.policy.base import Roles
from core.types import Task
from tests.unit.agentic.toolorchestra.conftest import recipe


@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_every_expert_of_a_preset_has_a_model_and_tau2_is_asked_for(preset: str) -> None:
    loaded = SPEC.load(preset)
    with pytest.raises(RecipeError, match=r"TAU2/bin/python: no such program.*toolorchestra\.environment=null"):
        make_environment_factory(loaded.toolorchestra.environment)
    models = set(loaded.toolorchestra.model_mapping.values())
    assert models == set(loaded.toolorchestra.models) - {"judge"}
    assert set(loaded.toolorchestra.aliases) == set(loaded.toolorchestra.model_mapping)


def test_the_papers_prices_are_those_of_the_released_evaluation() -> None:
    section = SPEC.load("paper").toolorchestra
    price = {alias: section.models[model].price for alias, model in section.model_mapping.items()}
    prices = {alias: (p.input, p.output) for alias, p in price.items() if p is not None}
    assert prices == {
        "reasoner-1": (1.25, 10), "reasoner-2": (0.25, 2), "reasoner-3": (0.8, 0.8),
        "search-1": (1.25, 10), "search-2": (0.25, 2), "search-3": (0.8, 0.8),
        "answer-1": (1.25, 10), "answer-2": (0.25, 2), "answer-3": (0.9, 0.9), "answer-4": (0.8, 0.8),
        "answer-math-1": (0.9, 0.9), "answer-math-2": (0.2, 0.2),
        "expert-1": (1.25, 10), "expert-2": (0.25, 2), "expert-3": (0.8, 0.8),
    }  # fmt: skip


def test_seeds_records_are_priced_by_the_token(tokenizer: Any) -> None:
    """6e-7 stands there as `input_tokens_per_million`, and slime-agentic multiplies it by tokens as it is."""
    section = SPEC.load("seed").toolorchestra
    pricing = {"input_tokens_per_million": 6e-7, "output_tokens_per_million": 1.2e-6}
    record = {"model_mapping": {"answer-1": "Qwen/Qwen3-32B"}, "tool_pricing": {"Qwen/Qwen3-32B": pricing}}
    models = ModelPool(section, tokenizer).for_rollout(Roles({}))
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
