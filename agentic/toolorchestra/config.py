"""ToolOrchestra's own section of a recipe, and where its presets are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from core.config import Recipe, RecipeError, Section, load

PRESETS = Path(__file__).parent / "presets"

Style = Literal["hermes", "compact"]
ToolName = Literal["search", "enhance_reasoning", "call_expert", "answer"]
Weight = Annotated[float, Field(ge=0, le=1)]


class PriceSection(Section):
    """US dollars for a million tokens."""

    input: NonNegativeFloat
    output: NonNegativeFloat


class ModelSection(Section):
    """A model behind the experts' names. Give `url` or `role`."""

    url: str | None = None
    """Of an OpenAI-compatible service, such as http://HOST:PORT/v1 (vLLM, SGLang, hosted)."""
    name: str | None = None
    """As the service calls it; None: as it is called here."""
    api_key_file: str | None = None
    role: str | None = None
    """A name under the recipe's `roles`: asked with token ids."""
    tokenizer: str | None = None
    """Of `role`, folder or hub id; None: the policy's."""
    max_tokens: PositiveInt = 2048
    temperature: NonNegativeFloat = 0.0
    body: Mapping[str, Any] = {}
    """Further fields of a request to `url`, over those of our own; null leaves one out."""
    concurrency: PositiveInt = 64
    """Calls at once; further ones wait, outside of `timeout_s`."""
    timeout_s: PositiveFloat = 120.0
    """Of a call, retries included."""
    max_retries: NonNegativeInt = 2
    price: PriceSection | None = None
    """Where the record has no `tool_pricing` for it."""
    latency_s: NonNegativeFloat | None = None
    """Told to the orchestrator; what a call really took is measured."""

    @model_validator(mode="after")
    def _has_one_place(self) -> ModelSection:
        if (self.url is None) == (self.role is None):
            raise ValueError("give either url (OpenAI-compatible) or role (a name under the recipe's `roles`)")
        return self


class BudgetSection(Section):
    """Tokens of the rebuilt context; of what is over, the end is kept, and of a dialogue the newest."""

    attempts: PositiveInt = 8000
    code: PositiveInt = 16000
    """Attempts and code together."""
    total: PositiveInt = 24000
    """Of a prompt: tools, question or dialogue, and what is gathered. Headings and the chat template come on top."""
    document_characters: PositiveInt = 4000
    result_tokens: PositiveInt = 4000
    """Of one tool result or error in an append-only context."""


class EnvironmentSection(Section):
    path: str
    """`package.module.Class`, an agentic.toolorchestra.environment.Worlds."""
    options: Mapping[str, Any] = {}
    """Its keyword arguments."""


class ToolOrchestraSection(Section):
    style: Style = "hermes"
    context: Literal["rebuilt", "append_only"] = "rebuilt"
    """`rebuilt`: each turn's prompt is made anew within `budget`. `append_only`: it goes on from all that was said, and
    starts a new segment, counted as `drift`, only where it cannot."""
    max_turns: PositiveInt = 12
    max_tokens: PositiveInt = 8000
    """Of one completion of the orchestrator."""
    thinking: bool = True
    """Passed to the chat template as `enable_thinking`."""
    budget: BudgetSection = BudgetSection()
    tools: Mapping[ToolName, tuple[str, ...]] = {}
    """Of `qa`: tool -> experts that it may be given to. `search` without any searches for the question itself, and
    `answer` without any gives the latest attempt."""
    experts: tuple[str, ...] = ()
    """Of `func_call`: whom `call_expert` may hand the turn to; when empty there is no such tool."""
    descriptions: Mapping[str, str] = {}
    """What the orchestrator is told of an expert, where the record says nothing."""
    model_mapping: Mapping[str, str] = {}
    """Expert -> model, where the record has none of its own."""
    models: Mapping[str, ModelSection] = {}
    orchestrator_price: PriceSection | None = None
    """None: the orchestrator costs nothing."""
    pricing_unit: Literal["million", "token"] = "million"
    """Of prices in records: dollars for a million tokens, or for one (the released training data)."""
    search: Mapping[str, Any] = {}
    """Options of core.tools.search.Search: url, topk, ..."""
    addresses: str | None = None
    """A YAML file, name -> URL, as scripts/services.py writes it: `{name}` in a `url` stands for that URL."""
    coder: Mapping[str, Any] = {}
    """Options of core.tools.python_coder.PythonCoder, which runs what `enhance_reasoning` writes."""
    judge: str | None = None
    """A name in `models` that compares answers which are not equal; None: no judge."""
    environment: EnvironmentSection | None = None
    """The world of `func_call`."""
    reward: Literal["preference", "outcome"] = "preference"
    """`preference`: the paper's, within a group (core/rewards/preference.py). `outcome`: right or wrong."""
    preference: Mapping[str, Weight] = {"accuracy": 1.0}
    """Weights where the record has no `pref_vec`: of `accuracy`, `cost`, `latency` and of each expert."""
    latency: Literal["measured", "told"] = "measured"
    """What the reward calls latency: seconds of the clock, or the sum of the called models' `latency_s`."""
    mask_malformed: bool = True
    """Turns without a usable call are not trained."""
    mask_unanswered: bool = True
    """Rollouts without a valid answer are not trained; they count in the baseline."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Every expert that the orchestrator may name."""
        return tuple(dict.fromkeys([*chain.from_iterable(self.tools.values()), *self.experts]))

    @model_validator(mode="after")
    def _names_have_a_model(self) -> ToolOrchestraSection:
        for tool in ("enhance_reasoning", "call_expert"):
            if self.tools.get(tool) == ():
                raise ValueError(f"tools.{tool} has no expert to be given to; name one, or leave the tool out")
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
        return self


def located(config: ToolOrchestraSection) -> ToolOrchestraSection:
    """The section with the addresses of its services put into its URLs.

    Raises:
        RecipeError: the file of addresses is missing or names no such service.
    """
    if config.addresses is None:
        return config
    try:
        known = yaml.safe_load(Path(config.addresses).read_text())
    except OSError as error:
        raise RecipeError(
            f"toolorchestra.addresses: {error}; start the services first (tokentrue serve services, see run.sh)"
        ) from error

    def filled(url: str) -> str:
        try:
            return url.format_map(known)
        except KeyError as error:
            names = ", ".join(known)
            raise RecipeError(
                f"{config.addresses}: no address of {error}, which {url!r} asks; it has {names}"
            ) from error

    models = {
        name: model if model.url is None else model.model_copy(update={"url": filled(model.url)})
        for name, model in config.models.items()
    }
    search = {**config.search, "url": filled(config.search["url"])} if "url" in config.search else config.search
    return config.model_copy(update={"models": models, "search": search})


def load_recipe(preset: str, overrides: Sequence[str] = ()) -> ToolOrchestraRecipe:
    return load(ToolOrchestraRecipe, PRESETS, preset, overrides)
