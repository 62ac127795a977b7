"""Evaluate an orchestrator on FRAMES or HLE as ToolOrchestra's released evaluation does.

    tokentrue evaluate questions --protocol frames --data data/frames.jsonl --model ID --policy-url http://host:30000

The preset `published` says where the experts, the judge and the retrieval service are; RESULTS.md of
agentic/toolorchestra says how to start them. Each question is logged as it ends (benchmarks/harness/samples.py): the
same command continues where a killed one stopped.

Sources of the published scores and their protocol: arXiv 2511.21689, Table 1; evaluation/eval_frames.py, eval_hle.py
and LLM_CALL.py of ToolOrchestra at 9d34d87 of Weili-0234/ToolOrchestra, which is NVIDIA's upload; the hashes are those
of evaluation/frames.jsonl and of the git-lfs pointer evaluation/hle.jsonl there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.rollout import SPEC
from benchmarks.harness.command import Evaluator
from benchmarks.harness.one_file import FilePlan, evaluate_file, make_file_parser, plan_file
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.published import Protocol, Settings
from benchmarks.harness.run import build_result
from benchmarks.harness.samples import Samples, flat, measure_columns
from benchmarks.questions.method import COUNTS, ReleasedQuestions
from benchmarks.questions.prompts import Data, read_released
from core.runs.evaluation import EvalResult
from core.types import CALLS, Sampling

DATA: Mapping[str, str] = {
    "frames": "3241d653b91c44adfc86c261c9df63b5e7a0a334dd0b43ccd961e206db6423d3",
    "hle": "d025de84d8a9cd2e952550f4dad559a1b6dce0697ba5a148d4dd41b0e7fa3e49",
}
"""Maps a set of questions to the SHA-256 of its file."""


def protocol(data: Data) -> Protocol:
    """Return what the published scores of a data set follow from."""
    recipe = SPEC.load("published")
    sampling = Sampling(temperature=recipe.run.eval_temperature, top_p=recipe.run.eval_top_p)
    released = read_released()[data]
    settings = {
        **our_settings(data, recipe, sampling, DATA[data]),
        "question whose request failed": "asked again without end",
        "programs": "run without isolation for 60 seconds" if released.runs_programs else "lost by a fault",
        "passages": "as they are",
        "search service": f"{released.service}; queries behind `Given a search query, retrieve relevant passages`",
    }
    return Protocol(f"toolorchestra {data}", settings, frozenset({"prompts", "max_turns"}))


def our_settings(data: Data, recipe: ToolOrchestraRecipe, sampling: Sampling, sha256: str) -> Settings:
    """Return the settings of a cell of ours, in the words of `protocol`."""
    section = recipe.toolorchestra

    def describe(alias: str) -> str:
        model = section.models[section.model_mapping.get(alias, alias)]
        named: Any = model.name or section.model_mapping.get(alias, alias)
        tokens = (model.body.get("max_completion_tokens") if model.body else None) or model.max_tokens
        return (
            f"{named}, {tokens:,} tokens, temperature {'its own' if 'temperature' in model.body else model.temperature}"
        )

    return {
        "prompts": f"released for {data}",
        "questions": f"sha256 {sha256[:12]}",
        "max_turns": section.max_turns,
        "max_tokens": section.max_tokens,
        "thinking": section.thinking,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **{f"model of {alias}": describe(alias) for alias in section.aliases},
        "judge": describe(str(section.judge)),
        "retrieval": read_released()[data].passages,
        "question whose request failed": "wrong",
        "programs": "run in the sandbox" if read_released()[data].runs_programs else "not run",
        "passages": "without white space around title and text",
        "search service": "the recipe's, which leaves out and adds nothing",
    }


def prepare(options: argparse.Namespace) -> FilePlan:
    """Turn the options into a plan, checked as far as possible without running anything."""

    def describe(recipe: ToolOrchestraRecipe, cell: EvalCell, digest: str) -> tuple[Protocol, Settings]:
        return protocol(options.protocol), our_settings(options.protocol, recipe, cell.sampling, digest)

    return plan_file(
        "questions",
        options,
        SPEC,
        describe,
        missing=f"copy evaluation/{options.protocol}.jsonl of NVlabs/ToolOrchestra (git-lfs), or tokentrue data "
        f"download {options.protocol}",
        sections=("toolorchestra", "roles"),
    )


async def evaluate(plan: FilePlan) -> None:
    """Run every cell that the folder lacks and save it there."""
    await evaluate_file(
        plan, lambda cell: partial(ReleasedQuestions, data=cast(Data, cell.data)), build_question_result
    )


def build_question_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build a result with score, cost and calls of every question; a failed one scores 0 and has no measures."""
    measures = {
        name: column
        for name, column in measure_columns(samples).items()
        if name.startswith(CALLS) or name in ("cost", *COUNTS)
    }
    scores = {"official": [sample.reward or 0.0 for sample in flat(samples)]}
    return build_result(cell, samples, scores=scores, measures=measures)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    return make_file_parser(
        "questions",
        __doc__,
        tuple(DATA),
        model={"required": True, "help": "the orchestrator"},
        preset={"default": "published", "help": "recipe of experts and their models (default: published)"},
        tasks={"help": "only the first N questions"},
        deadline={"default": 7200.0},
    )


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
