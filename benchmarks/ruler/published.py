"""MemAgent's published scores (arXiv 2507.02259v1), and the protocol behind them as settings.

The protocol is the preset `published` with what no preset says. The sources of its values are in
agentic/memagent/presets/published.yaml; of the others, in the released taskutils/memory_eval at 76b7a65: budgets of
whole documents in run.py lines 15, 16 and 206; what becomes of a failed request in ruler_hqa.py line 63; the memory in
utils/recurrent.py line 80.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import SPEC
from benchmarks.harness.published import Protocol, Settings
from benchmarks.ruler.eval_data import OFFICIAL_FILES, EvalData
from benchmarks.ruler.variants import Window
from core.report import PublishedScore
from core.types import Sampling

AVERAGE = "ruler-10"
"""Names the mean over the ten tasks."""

WINDOW, LONG_WINDOW = Window(120_000, 10_000), Window(990_000, 10_000)
"""Hold the budgets of models that read whole documents, and of those with a context of a million tokens."""

_NOT_READING = {"train_update", "train_final", "overlong"}
_ESSENTIAL = frozenset(
    ("length", "places", "prompt_style", "prompt_order", "answer_format", "gate_update", "tokens of a whole prompt")
)

TABLE, FIGURE = "arXiv 2507.02259v1, Table 2", "arXiv 2507.02259v1, Figure 5, read off"
CARD = "slime-agentic's model card, best of 5 runs"
HQA = (
    # model, name, our variant, source, per cent at 50, 100, ... 6400 documents
    ("RL-MemoryAgent-14B", "RL-MemAgent-14B", "trained", TABLE,
     (83.59, 82.03, 84.38, 80.47, 76.56, 81.25, 75.00, 77.34)),
    ("RL-MemoryAgent-7B", "RL-MemAgent-7B", "trained", TABLE,
     (82.03, 79.69, 78.91, 77.34, 79.69, 72.66, 74.22, 76.56)),
    ("MemAgent_Slime_Agentic_Qwen2.5_7B", "slime-agentic's 7B", "trained", CARD,
     (78.12, 76.56, 75.78, 74.22, 77.34, 72.66, 69.53)),
    ("Qwen2.5-7B-Instruct", "MemAgent-7B without RL", "untrained", FIGURE,
     (59.4, 52.3, 51.6, 47.7, 35.9, 34.4, 39.1, 37.5)),
    ("Qwen2.5-7B-Instruct-128k", "Qwen2.5-7B, YaRN", "full-context", FIGURE,
     (52.3, 57.0, 51.6, 44.5, 33.0, 13.3, 6.3, 1.6)),
    ("Qwen2.5-7B-Instruct-1M", "Qwen2.5-7B-1M", "full-context", TABLE,
     (61.72, 56.25, 53.91, 55.47, 51.56, 33.59, 12.50, 0.00)),
    ("Qwen2.5-14B-Instruct-1M", "Qwen2.5-14B-1M", "full-context", TABLE,
     (60.16, 60.94, 50.00, 57.03, 50.00, 37.50, 8.59, 0.00)),
)  # fmt: skip
TEN = (
    # model, name, our variant, per cent at 8K, 16K, ... 512K tokens: the paper's average over ten tasks
    ("RL-MemoryAgent-14B", "RL-MemAgent-14B", "trained", (97.45, 96.97, 97.46, 97.85, 96.08, 96.24, 95.40)),
    ("RL-MemoryAgent-7B", "RL-MemAgent-7B", "trained", (93.03, 92.03, 91.33, 88.83, 86.92, 83.70, 81.91)),
    ("Qwen2.5-7B-Instruct", "MemAgent-7B without RL", "untrained", (92.56, 92.47, 90.52, 88.36, 84.46, 80.05, 73.48)),
)
TASKS_EACH = 128


def published_scores(data: str) -> list[PublishedScore]:
    """Return the published scores of a data set: `ruler-hqa` or AVERAGE."""
    return list(_hqa_scores() if data == "ruler-hqa" else _ten_scores() if data == AVERAGE else ())


def _hqa_scores() -> Iterator[PublishedScore]:
    for model, name, variant, source, scores in HQA:
        protocol = protocol_name(variant, LONG_WINDOW if model.endswith("1M") else WINDOW)
        for place, percent in enumerate(scores):
            yield PublishedScore(
                name, "ruler-hqa", 50 << place, percent / 100, source, variant, "official", model, protocol, TASKS_EACH
            )


def _ten_scores() -> Iterator[PublishedScore]:
    source = "arXiv 2507.02259v1, mean of ten RULER tasks"
    for model, name, variant, scores in TEN:
        for place, percent in enumerate(scores):
            yield PublishedScore(
                name, AVERAGE, 8192 << place, percent / 100, source, variant, "official", model,
                protocol_name(variant), 10 * TASKS_EACH,
            )  # fmt: skip


def protocol_name(variant: str, window: Window | None = None) -> str:
    """Return the name of the protocol of a variant: how documents are read."""
    if variant != "full-context":
        return "memagent recurrent"
    return "memagent openai" if window is None else f"memagent openai {window.prompt_tokens // 1000}K"


@cache
def protocol(variant: str, data: str, window: Window | None = None) -> Protocol:
    """Return the published protocol of a variant on the data sets `hqa` or `ruler`."""
    recipe = SPEC.load("published")
    sampling = Sampling(temperature=recipe.run.eval_temperature, top_p=recipe.run.eval_top_p)
    whole = LONG_WINDOW if window == LONG_WINDOW else WINDOW
    settings = {
        **OFFICIAL_FILES[data],
        **_settings(variant, recipe.memagent, recipe.run.eval_tasks, sampling, whole),
        "failed tasks": "left out",
        **_memory(variant, "text without thoughts, encoded again in each turn"),
    }
    return Protocol(protocol_name(variant, whole), settings, _ESSENTIAL & settings.keys())


def our_settings(
    variant: str, data: EvalData, method: MemAgentSection, tasks: int, sampling: Sampling, window: Window | None
) -> Settings:
    """Return the settings of a cell of ours, in the words of `protocol`."""
    return {
        **data.protocol,
        **_settings(variant, method, tasks, sampling, window),
        "failed tasks": "score 0",
        **_memory(variant, "token ids"),
    }


def _memory(variant: str, form: str) -> dict[str, str]:
    return {} if variant == "full-context" else {"memory": form}


def _settings(
    variant: str, method: MemAgentSection, tasks: int, sampling: Sampling, window: Window | None
) -> dict[str, Any]:
    reading = method.model_dump(mode="json", exclude=_NOT_READING)
    if variant == "full-context":
        tokens = (window.prompt_tokens, window.answer_tokens) if window else ("all", method.max_final_tokens)
        reading = {
            "answer_format": method.answer_format,
            "tokens of a whole prompt": tokens[0],
            "tokens of its answer": tokens[1],
        }
    return {"tasks": tasks, "temperature": sampling.temperature, "top_p": sampling.top_p, **reading}
