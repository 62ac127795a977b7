"""Defines ToolOrchestra's section of a recipe and the folder of its presets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from core.config import Recipe, Section
from core.http_client import read_addresses
from core.options import Probability

PRESETS = Path(__file__).parent / "presets"

Format = Literal["hermes", "calls", "compact"]
ToolName = Literal["search", "enhance_reasoning", "call_expert", "answer"]


class PriceSection(Section):
    """Gives US dollars for a million tokens."""

    input: NonNegativeFloat
    output: NonNegativeFloat


class ExpertModelSection(Section):
    """Describes a model behind the names of experts. Give `url` or `role`."""

    url: str | None = None
    """Names an OpenAI-compatible service, such as http://HOST:PORT/v1 (vLLM, SGLang, hosted)."""
    name: str | None = None
    """Gives the name by which the service knows the model. None means the name in this recipe."""
    api_key_file: str | None = None
    role: str | None = None
    """Names one of the recipe's `roles`, which is asked with token ids."""
    tokenizer: str | None = None
    """Names the folder or hub id of the role's tokenizer. None means the policy's."""
    max_tokens: PositiveInt = 2048
    temperature: NonNegativeFloat = 0.0
    body: Mapping[str, Any] = {}
    """Adds or replaces fields of a request to `url`; null removes a field."""
    concurrency: PositiveInt = 64
    """Limits the calls at the same time. Further calls wait, and `timeout_s` does not count this time."""
    timeout_s: PositiveFloat = 120.0
    """Limits the seconds of one call, retries included."""
    max_retries: NonNegativeInt = 2
    price: PriceSection | None = None
    """Sets the price where the record has no `tool_pricing` for the model."""
    latency_s: NonNegativeFloat | None = None
    """Declares the seconds of a call to the orchestrator. What a call really takes is measured."""

    @model_validator(mode="after")
    def _has_one_address(self) -> ExpertModelSection:
        if (self.url is None) == (self.role is None):
            raise ValueError("give either url (OpenAI-compatible) or role (a name under the recipe's `roles`)")
        return self


class BudgetSection(Section):
    """Limits the tokens of a rebuilt context. What was gathered keeps its end, and a dialogue its newest turns."""

    attempts: PositiveInt = 8000
    code: PositiveInt = 16000
    """Limits attempts and code together."""
    total: PositiveInt = 24000
    """Limits the tools, the question or dialogue, and what was gathered. Headings and the chat template come on top."""
    document_characters: PositiveInt = 4000
    result_tokens: PositiveInt = 4000
    """Limits a tool result or error, which keeps its beginning; in a rebuilt context also a message of the dialogue."""


class EnvironmentSection(Section):
    path: str
    """Names an agentic.toolorchestra.environment.EnvironmentFactory as `package.module.Class`."""
    options: Mapping[str, Any] = {}
    """Gives its keyword arguments."""


class ToolOrchestraSection(Section):
    format: Format = "hermes"
    """Chooses how the orchestrator writes calls (formats.py). `calls` is the form of the model's own chat template."""
    context: Literal["rebuilt", "append_only"] = "rebuilt"
    """Chooses the prompt of a turn. `rebuilt` makes it anew within `budget`. `append_only` appends to the turn before;
    where it cannot, a new segment starts, and `drift` counts it."""
    max_turns: PositiveInt = 12
    max_tokens: PositiveInt = 8000
    """Limits the tokens of one completion of the orchestrator."""
    thinking: bool = True
    """Goes to the chat template as `enable_thinking`."""
    budget: BudgetSection = BudgetSection()
    tools: Mapping[ToolName, tuple[str, ...]] = {}
    """Maps each tool of `qa` to its experts. A tool without experts asks none: `search` takes the question as its
    query, and `answer` returns the latest attempt."""
    experts: tuple[str, ...] = ()
    """Lists the experts to whom `call_expert` may hand a `func_call` turn. An empty list removes this tool."""
    model_mapping: Mapping[str, str] = {}
    """Maps an expert to a model, if the record has no mapping of its own."""
    models: Mapping[str, ExpertModelSection] = {}
    orchestrator_price: PriceSection | None = None
    """Sets the price of the orchestrator. None means that it costs nothing."""
    pricing_unit: Literal["million", "token"] = "million"
    """Says whether prices in records are for a million tokens or for one token (the released training data)."""
    search: Mapping[str, Any] = {}
    """Gives the options of core.tools.search.Search: url, topk, ..."""
    addresses: str | None = None
    """Names a YAML file, name -> URL, as scripts/services.py writes it. `{name}` in a `url` stands for that URL."""
    coder: Mapping[str, Any] = {}
    """Gives the options of core.tools.python_coder.PythonCoder, which runs the programs of `enhance_reasoning`."""
    judge: str | None = None
    """Names one of `models`, which compares answers that are not equal. None means no judge."""
    environment: EnvironmentSection | None = None
    """Describes the environment of `func_call`."""
    reward: Literal["preference", "outcome"] = "preference"
    """Chooses the reward: the paper's `preference` within a group (reward.py), or the `outcome`."""
    preference: Mapping[str, Probability] = {"accuracy": 1.0}
    """Weighs `accuracy`, `cost`, `latency` and each expert, if the record has no `pref_vec`."""
    latency: Literal["measured", "declared"] = "measured"
    """Chooses the latency of the reward: seconds by the clock, or the sum of the called models' `latency_s`."""
    mask_malformed: bool = True
    """Keeps turns without a usable call out of training."""
    mask_unanswered: bool = True
    """Keeps rollouts without a valid answer out of training; they still count in the baseline."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return every expert that the orchestrator may name."""
        return tuple(dict.fromkeys([*chain.from_iterable(self.tools.values()), *self.experts]))

    @model_validator(mode="after")
    def _names_have_a_model(self) -> ToolOrchestraSection:
        for tool in ("enhance_reasoning", "call_expert"):
            if self.tools.get(tool) == ():
                raise ValueError(f"tools.{tool} has no expert to be given to; name one, or leave the tool out")
        features = {"accuracy", "cost", "latency", *self.aliases, *self.model_mapping, *self.tools}
        if unknown := self.preference.keys() - features:
            raise ValueError(f"preference weighs {', '.join(unknown)}, which is no feature, expert or tool")
        for alias, model in self.model_mapping.items():
            if model not in self.models:
                raise ValueError(f"model_mapping.{alias} is {model!r}, which is not under toolorchestra.models")
        if self.judge is not None and self.judge not in self.models:
            raise ValueError(f"judge is {self.judge!r}, which is not under toolorchestra.models")
        if "search" in self.tools and "url" not in self.search:
            raise ValueError("search.url is missing; add http://HOST:PORT/retrieve of the retrieval service")
        if self.tools and "answer" not in self.tools:
            raise ValueError("tools.answer is missing; without it no question is ever answered")
        return self


class ToolOrchestraRecipe(Recipe):
    toolorchestra: ToolOrchestraSection

    @model_validator(mode="after")
    def _experts_have_a_role(self) -> ToolOrchestraRecipe:
        known = {*self.roles, *(self.slime.roles if self.slime else ())}
        for name, model in self.toolorchestra.models.items():
            if model.role is not None and model.role not in known:
                raise ValueError(f"toolorchestra.models.{name}.role is {model.role!r}, which is not under `roles`")
        if self.algorithm.observation_coef and self.toolorchestra.mask_malformed:
            raise ValueError(
                "observation_coef would also learn malformed calls; set toolorchestra.mask_malformed=false"
            )
        return self


def resolve_addresses(config: ToolOrchestraSection) -> ToolOrchestraSection:
    """Put the addresses of services into the section's URLs.

    Raises:
        RecipeError: the file of addresses is missing or lacks a service.
    """
    fill = read_addresses("toolorchestra.addresses", config.addresses)
    models = {
        name: model if model.url is None else model.model_copy(update={"url": fill(model.url)})
        for name, model in config.models.items()
    }
    search = {**config.search, "url": fill(config.search["url"])} if "url" in config.search else config.search
    return config.model_copy(update={"models": models, "search": search})
