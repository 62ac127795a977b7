"""Evaluate an orchestrator on FRAMES or HLE as ToolOrchestra's released evaluation does.

    tokentrue evaluate questions --protocol frames --data data/frames.jsonl --model ID --policy-url http://host:30000

The preset `published` says where the experts, the judge and the retrieval service are; RESULTS.md of
agentic/toolorchestra says how to start them. Each question is logged as it ends (benchmarks/harness/samples.py): the
same command continues where a killed one stopped.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import cast

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.rollout import SPEC
from benchmarks.harness.command import Evaluator
from benchmarks.harness.one_file import FilePlan, evaluate_file, make_file_parser, plan_file
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.published import Protocol, Settings
from benchmarks.harness.run import build_result
from benchmarks.harness.samples import Samples, flat, measure_columns
from benchmarks.questions.method import ReleasedQuestions
from benchmarks.questions.prompts import Data
from benchmarks.questions.published import DATA, our_settings, protocol
from core.runs.evaluation import EvalResult
from core.types import CALLS


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
        if name.startswith(CALLS) or name in ("cost", "malformed", "expert_failures", "tool_failures")
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
        temperature={"default": None, "help": "default: 1, as in the preset published"},
        deadline={"default": 7200.0},
    )


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
