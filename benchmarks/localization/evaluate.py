"""Evaluate how well a model finds the files and functions of SWE-bench's issues, beside CodeScout's published scores.

    tokentrue data codescout SWE-bench_Verified.parquet --repositories clones --checkouts checkouts \\
        --out data/swebench-verified.jsonl
    tokentrue evaluate localize --protocol swebench-verified --model ID --policy-url http://host:30000

The scores are file_f1, module_f1 and function_f1, each the mean over instances; `official` is the mean of the three. A
failed rollout, and one without an answer, score 0. Each task is logged as it ends (benchmarks/harness/samples.py): the
same command continues where a killed one stopped.

Sources of the published scores and of what is known of their protocol: the model cards of OpenHands/CodeScout-1.7B, -4B
and -14B (scores; limits of the training), and OpenHands/codescout at 974238b (prompts, tools, reward). What the
evaluation sets is `not found` below. It is in a fork, adityasoni9998/benchmarks, of which an earlier state could be
read (529fb20). There the answer is a text, an instance that failed leaves the mean, a level without gold scores 0, and
the notes beside it give another CodeScout-14B 15 turns and sets without some instances: 453 of Verified, 234 of Pro,
274 of Lite, on which its function F1 is four points higher than on all 300.
"""

from __future__ import annotations

import argparse

from agentic.codescout.config import CodeScoutRecipe
from agentic.codescout.rollout import SPEC
from benchmarks.harness.command import Evaluator
from benchmarks.harness.one_file import FilePlan, evaluate_file, make_file_parser, plan_file
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.published import Protocol, Settings
from benchmarks.harness.run import build_result
from benchmarks.harness.samples import Samples, measure_columns
from core.runs.evaluation import EvalResult
from core.types import CALLS, Sampling

DATA = ("swebench-verified", "swebench-pro", "swebench-lite")
NOT_FOUND = "not found"
_NOT_SAID = (
    "failed instances", "instances without a gold function", "max_turns", "max_tokens", "context_tokens", "temperature",
    "top_p",
)  # fmt: skip
_ESSENTIAL = frozenset({"tools", "score"})


def protocol(data: str) -> Protocol:
    """Return what the published scores of a data set follow from, as far as it is known."""
    settings = {
        "tools": "a shell and localization_finish",
        "shell": "terminal, one session, with folder and exit code",
        "score": "F1 of each instance, averaged",
        "prompts": "released",
        "gold places": "file_changes of the released data sets",
        **dict.fromkeys(_NOT_SAID, NOT_FOUND),
    }
    return Protocol(f"codescout {data}", settings, _ESSENTIAL)


def our_settings(recipe: CodeScoutRecipe, sampling: Sampling) -> Settings:
    """Return the settings of a cell of ours, in the words of `protocol`."""
    section = recipe.codescout
    return {
        "tools": "a shell and localization_finish",
        "shell": "bash, a new one for each command, its output alone",
        "score": "F1 of each instance, averaged",
        "prompts": "ours, by the released rules" if section.prompt == "full" else "the issue alone",
        "gold places": "file_changes of the record (agentic/codescout/gold.py)",
        "failed instances": "0",
        "instances without a gold function": "0 in function_f1",
        "max_turns": section.max_turns,
        "max_tokens": section.max_tokens,
        "context_tokens": section.context_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }


SCORES = ("official", "file_f1", "module_f1", "function_f1")


def prepare(options: argparse.Namespace) -> FilePlan:
    """Turn the options into a plan, checked as far as possible without running anything."""

    def describe(recipe: CodeScoutRecipe, cell: EvalCell, digest: str) -> tuple[Protocol, Settings]:
        return protocol(options.protocol), our_settings(recipe, cell.sampling)

    missing = "make it, as benchmarks/localization/evaluate.py shows at its top"
    return plan_file("localization", options, SPEC, describe, missing=missing, sections=("codescout",))


async def evaluate(plan: FilePlan) -> None:
    """Run every cell that the folder lacks and save it there."""
    await evaluate_file(plan, lambda cell: SPEC.build, build_localization_result)


def build_localization_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build a result with the scores, calls and ends of every task; a failed one scores 0 and has no measures."""
    columns = measure_columns(samples)
    scores = {name: [value or 0.0 for value in columns[name]] for name in SCORES}
    measures = {name: columns[name] for name in columns if name.startswith((CALLS, "end_", "malformed_"))}
    return build_result(cell, samples, scores=scores, measures=measures)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    preset = {"default": "paper", "help": "recipe of the limits and prompts (default: paper)"}
    return make_file_parser("localize", __doc__, DATA, preset=preset)


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
