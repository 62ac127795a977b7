"""MemAgent's published scores (arXiv 2507.02259v1), and the protocol behind them as settings.

The protocol is the preset `published` with what no preset says. The sources of its values are in
agentic/memagent/presets/published.yaml; of the others, in the released taskutils/memory_eval at 76b7a65: budgets of
whole documents in run.py lines 15, 16 and 206; what becomes of a failed request in ruler_hqa.py line 63; the memory in
utils/recurrent.py line 80.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import SPEC
from benchmarks.harness.published import Protocol, Settings
from benchmarks.ruler.eval_data import OFFICIAL_FILES, EvalData
from benchmarks.ruler.variants import Window
from core.types import Sampling

AVERAGE = "ruler-10"
"""Names the mean over the ten tasks."""

WINDOW, LONG_WINDOW = Window(120_000, 10_000), Window(990_000, 10_000)
"""Hold the budgets of models that read whole documents, and of those with a context of a million tokens."""

_NOT_READING = {"train_update", "train_final", "overlong"}
_ESSENTIAL = frozenset(
    ("length", "places", "prompt_style", "prompt_order", "answer_format", "gate_update", "tokens of a whole prompt")
)


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
    name = f"memagent openai {whole.prompt_tokens // 1000}K" if variant == "full-context" else "memagent recurrent"
    return Protocol(name, settings, _ESSENTIAL & settings.keys())


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
