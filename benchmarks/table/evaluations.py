"""Which evaluation gives a published row its score: its command, its data, and the models that it asks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentic.toolorchestra.rollout import SPEC as TOOLORCHESTRA
from benchmarks.aime.published import SLIME
from benchmarks.aime.published import published_scores as aime_scores
from benchmarks.questions.published import DATA as QUESTION_SETS
from benchmarks.questions.published import published_scores as question_scores
from benchmarks.ruler.published import AVERAGE, LONG_WINDOW, WINDOW
from benchmarks.ruler.published import published_scores as ruler_scores
from benchmarks.ruler.tasks import TEN_TASKS
from benchmarks.table.servers import MODELS
from benchmarks.tau2.published import published_scores as tau2_scores
from core.report import PublishedScore

AIME_BUDGET, SEED_BUDGET = 2048, 4096
"""Count the tokens of a call in AgentFlow's presets `published` and `seed`."""

CACHED = {"ruler": 16 * 8192, "aime": 8 * 16384, "tau2": 4 * 32768, "questions": 4 * 32768}
"""Tokens in a server's cache: so many calls at once, with the context of the benchmark."""

FROZEN, CODER = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"
AIME_ROLES = {
    **dict.fromkeys(("fixed", "executor", "verifier", "base_generator", "judge"), FROZEN),
    "coder": CODER,
}
SEARCH_TOOLS = ("Ground_Google_Search_Tool", "Wikipedia_RAG_Search_Tool")
"""Names the tools of AgentFlow that ask the retrieval service."""
STAND_IN = "stand-in"
"""Names the role that plays every model of ToolOrchestra where one small model stands for all."""


@dataclass(frozen=True)
class Places:
    """Says where an evaluation finds its data and tau2-bench."""

    data: Path = Path("data")
    tau2_python: str = "TAU2/bin/python"
    tau2_data: str = "TAU2_DATA"


@dataclass(frozen=True)
class Evaluation:
    """Holds a command that gives published rows their scores, without the addresses of servers."""

    benchmark: str
    """Names a subcommand of `tokentrue evaluate`."""
    model: str
    """Names the evaluated model by its hub id."""
    label: str
    """Tells it from other evaluations of the same model."""
    options: tuple[str, ...]
    models: tuple[str, ...]
    """Names the models that must be served, the evaluated one first."""
    cached_tokens: int
    data: tuple[str, ...] = ()
    """Names the sources of benchmarks/table/data.py that it reads."""
    hosted: tuple[str, ...] = ()
    """Names the models that are asked for over a paid interface."""
    with_untrained: bool = False
    preset: str = "published"
    """Names the recipe of ToolOrchestra's models."""

    @property
    def name(self) -> str:
        """Return the name of the results' folder."""
        return "-".join(["table", self.benchmark, self.model.rpartition("/")[2], self.label])

    def command(self, models: Mapping[str, str] | None = None, extra: Sequence[str] = ()) -> list[str]:
        """Return the words after `tokentrue evaluate`. `models` maps hub ids to folders that stand for them."""
        model = (models or {}).get(self.model, self.model)
        untrained = ["--untrained", model] if self.with_untrained else []
        return [self.benchmark, "--model", model, *untrained, *self.options, *extra]

    def address(self, urls: Mapping[str, str], stand_in: bool, retrieval: str | None = None) -> list[str]:
        """Return the options that name the servers of the models and of the passages.

        `stand_in`: one model plays those behind paid interfaces, too.
        """
        words = ["--policy-url", urls[self.model]]
        if self.benchmark == "aime":
            changed = [f"roles.{role}={urls[model]}" for role, model in AIME_ROLES.items() if model in urls]
            # Our own server, which plays the models, has no such penalty.
            changed += ["agentflow.planner.next_step.frequency_penalty=0"] if stand_in else []
            changed += [f"agentflow.tools.{tool}.options.url={retrieval}" for tool in SEARCH_TOOLS if retrieval]
            return [*words, *(word for text in changed for word in ("--set", text))]
        if self.benchmark not in ("tau2", "questions"):
            return words
        dumped = TOOLORCHESTRA.load(self.preset).model_dump(mode="json")["toolorchestra"]["models"]
        for name, section in dumped.items():
            if stand_in:
                section.update({"url": None, "role": STAND_IN, "name": STAND_IN, "api_key_file": None})
                section["max_tokens"] = min(section["max_tokens"], 64)
            elif name in urls:
                section["url"] = f"{urls[name]}/v1"
        words += ["--set", f"toolorchestra.models={json.dumps(dumped)}"]
        words += (
            ["--set", f"toolorchestra.search.url={retrieval}"] if retrieval and self.benchmark == "questions" else []
        )
        if stand_in:
            words += ["--set", f"roles.{STAND_IN}={urls[self.model]}"]
            # A small model's empty turns would end a conversation without a grade.
            words += ["--user", "scripted"] if self.benchmark == "tau2" else []
        return words


def list_published() -> list[PublishedScore]:
    """Return every published score of every benchmark."""
    aime = [row for row in aime_scores("aime24", AIME_BUDGET) if row.protocol != SLIME]
    seed = [row for row in aime_scores("aime24", SEED_BUDGET) if row.protocol == SLIME]
    return [
        *ruler_scores("ruler-hqa"),
        *ruler_scores(AVERAGE),
        *aime,
        *seed,
        *tau2_scores(),
        *question_scores(),
    ]


def find_evaluation(row: PublishedScore, places: Places | None = None) -> Evaluation | None:
    """Return what measures a row; None where its model or its protocol cannot be had."""
    places = places or Places()
    found = MODELS.get(row.model or row.name)
    if found is None or row.variant == "single" or row.protocol == "not stated":
        return None
    model = found.name
    options: tuple[str, ...]
    if row.data.startswith("ruler"):
        return _ruler(row, model, places)
    if row.data == "aime24":
        seed = row.protocol == SLIME
        file = places.data / "aime24.jsonl"
        options = (
            *("--preset", "seed" if seed else "published", "--variants", row.variant),
            *("--data", str(file) if file.is_file() else "aime24", "--k", "1" if seed else "3"),
        )
        untrained = row.variant == "agent-untrained"
        models = tuple(dict.fromkeys((model, FROZEN, CODER)))
        label = f"{row.variant}-aime24"
        return Evaluation("aime", model, label, options, models, CACHED["aime"], ("aime24",), with_untrained=untrained)
    if row.data in QUESTION_SETS:
        options = ("--data", str(places.data / f"{row.data}.jsonl"), "--protocol", row.data, "--seeds", "0")
        local, hosted = _list_experts()
        sources = (row.data, f"{row.data}-corpus")
        served = (model, *local)
        return Evaluation("questions", model, row.data, options, served, CACHED["questions"], sources, hosted)
    experts = () if row.protocol == "standard" else ("Qwen/Qwen3-32B",)
    options = (
        *("--protocol", str(row.protocol), "--variants", str(row.protocol), "--user", "gpt-5", "--judge", "gpt-5"),
        *("--tau2-python", places.tau2_python, "--tau2-data", places.tau2_data, "--trials", "1"),
    )
    hosted = ("gpt-5",) if row.protocol == "standard" else ("gpt-5", "gpt-5-mini")
    label, served = f"{row.protocol}-tau2", (model, *experts)
    return Evaluation("tau2", model, label, options, served, CACHED["tau2"], ("tau2",), hosted, preset="paper")


def _ruler(row: PublishedScore, model: str, places: Places) -> Evaluation:
    long = row.protocol is not None and row.protocol.endswith("990K")
    window = ("--window", str(LONG_WINDOW.prompt_tokens), str(LONG_WINDOW.answer_tokens)) if long else ()
    files = places.data / "memagent-eval"
    sources: tuple[str, ...] = ("memagent-eval",)
    data: tuple[str, ...] = ("--data", str(files))
    if row.data == AVERAGE:
        data = ("--task", AVERAGE, *data)
        if not all(list(files.glob(f"eval_{task}_*.json")) for task in TEN_TASKS):
            data, sources = ("--task", AVERAGE, "--essays", str(places.data / "essays")), ("essays",)
    options = ("--preset", "published", "--variants", row.variant, *data, "--seeds", "0", *window)
    whole = LONG_WINDOW if long else WINDOW
    tokens = CACHED["ruler"] if row.variant != "full-context" else whole.prompt_tokens + whole.answer_tokens
    untrained = row.variant == "untrained"
    label = f"{row.variant}-{row.data}{'-990K' if long else ''}"
    return Evaluation("ruler", model, label, options, (model,), tokens, sources, with_untrained=untrained)


@cache
def _list_experts() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the models of FRAMES and HLE that can be served, and those behind paid interfaces."""
    models = TOOLORCHESTRA.load("published").toolorchestra.models
    known = [model.name for model in MODELS.values()]
    hosted = dict.fromkeys(section.name or name for name, section in models.items() if section.api_key_file)
    return tuple(name for name in models if name in known), tuple(hosted)
