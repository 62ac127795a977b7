"""Presets are what their sources say, their services are where they look, and what cannot work is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from agentic.toolorchestra.config import PRESETS
from agentic.toolorchestra.experts import Experts, ModelPool
from agentic.toolorchestra.rollout import SPEC
from core.config import RecipeError
from core.policy.base import Roles
from core.types import Task
from scripts.services import Service, read_services
from tests.unit.agentic.toolorchestra.conftest import recipe


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
        ({"preference": {"acuracy": 1.0}}, "preference weighs acuracy, which is no feature"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**changes)


def test_a_call_that_is_masked_is_no_observation_to_learn() -> None:
    settings = ["toolorchestra.context=append_only", "algorithm.name=echo"]
    assert SPEC.load("tiny", settings).algorithm.observation_coef == 0.05
    with pytest.raises(RecipeError, match=r"set toolorchestra\.mask_malformed=false"):
        SPEC.load("tiny", [*settings, "toolorchestra.mask_malformed=true"])


FILES = PRESETS.parent / "services"


def model(service: Service) -> str:
    found = re.search(r"--model-path (\S+)", service.command)
    return found[1] if found else ""


@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_the_launcher_looks_at_every_service(preset: str) -> None:
    slime = SPEC.load(preset).slime
    assert slime is not None
    services = read_services(FILES / f"{preset}.yaml")
    assert slime.services == {name: f"http://{s.host}:{s.port}/health" for name, s in services.items()}


@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_each_model_is_served_under_its_name_where_it_is_asked(preset: str) -> None:
    served = {f"http://{s.host}:{s.port}/v1": s for s in read_services(FILES / f"{preset}.yaml").values()}
    local = {n: m for n, m in SPEC.load(preset).toolorchestra.models.items() if str(m.url).startswith("http://127.")}
    assert len({m.url for m in local.values()}) == len(served) - 1, "all but the retrieval service"
    for name, section in local.items():
        service = served[str(section.url)]
        named = re.search(r"--served-model-name (\S+)", service.command)
        assert (section.name or name) == (named[1] if named else model(service))
