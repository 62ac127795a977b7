"""Evaluate a model on the AIME: a single call and an agent, on the same questions, with the same sampling and budget.

    python -m benchmarks.aime.evaluate --data aime24 --model CHECKPOINT --baseline ID --preset seed --k 64
    python -m benchmarks.aime.evaluate --data problems.jsonl --model ID --policy-url http://host:30000 --variants single
    python -m benchmarks.aime.evaluate --data aime25 --model ID --serve sglang --serve-args="--tp 2"

| variant | model | how |
|---|---|---|
| single | --baseline, or --model without one | one call |
| agent-untrained | --baseline | the method (AgentFlow) |
| agent | --model | the method |

Statistics are explained in statistics.py. Each sample is written as it ends; the same command goes on where a killed
one stopped, and a larger --k adds to what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import kinds
from benchmarks.aime.problems import load_problems
from benchmarks.aime.results import DEPARTURES, eval_result, published_rows, write_results
from benchmarks.aime.samples import read_sample, sample
from benchmarks.aime.single import MESSAGE, SingleCall
from benchmarks.aime.statistics import Statistics, statistics
from benchmarks.cells import EXPECTED_ERRORS, EvaluationError, weights_of
from benchmarks.models import Models, check_server
from benchmarks.plan import Plan, drop_failed, held, missing
from benchmarks.serving import add_server_options, check_server_options, server
from core.config import Recipe
from core.engine.policy import open_frozen_model
from core.hub import is_hub_id, resolve
from core.policy.base import Roles
from core.report import write_report
from core.rollout.method import Method, MethodSpec, check_roles, method_spec
from core.rollout.roles import open_roles
from core.runs.run_folder import RunFolder
from core.types import Sampling

VARIANTS = ("single", "agent-untrained", "agent")
RECIPE_ELSEWHERE = {"model", "data", "rollout", "algorithm", "optimizer", "engine", "run"}
"""Sections of a recipe that say nothing about how a trajectory comes about, or are stated otherwise."""


@dataclass(frozen=True)
class Evaluation:
    """Everything that a call asks for. `models` is variant -> model."""

    spec: MethodSpec
    recipe: Recipe
    models: dict[str, str]
    plan: Plan
    budget: int
    served: Models
    retry_failed: bool = False


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        folder, evaluation = prepare(options)
        with folder.lock(), server(options, folder.path) as urls:
            evaluation.served.urls |= urls
            asyncio.run(evaluate(evaluation, folder))
            text = write_results(folder, all_statistics(folder, options.seed))
            write_report(folder)
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    print(f"report: {folder.path / 'report.html'}, samples: {folder.seed_path(options.seed) / 'trajectories.jsonl'}")
    return 0


def prepare(options: argparse.Namespace) -> tuple[RunFolder, Evaluation]:
    """Options into what is to be done, checked as far as can be without running anything."""
    start = options.baseline or options.model
    models = {"single": start, "agent-untrained": options.baseline, "agent": options.model}
    variants = options.variants or [variant for variant in VARIANTS if models[variant] is not None]
    if "agent-untrained" in variants and options.baseline is None:
        raise EvaluationError(
            "variant agent-untrained: no model for it. Name the one that training started from: --baseline."
        )
    check_server_options(options)
    for variant in variants:
        if not is_hub_id(models[variant]):
            resolve(models[variant])  # before anything is downloaded
    spec = method_spec(options.method)
    recipe = spec.load(options.preset, [*options.overrides, f"model.path={options.model}"])
    recipe = type(recipe).model_validate(with_budget(recipe.dump(), options.budget))
    if threads := options.threads or recipe.engine.threads:
        torch.set_num_threads(threads)
    name, tasks = load_problems(options.data, options.data_dir)
    sampling = Sampling(temperature=options.temperature, top_p=options.top_p)
    config = {
        "method": spec.name,
        "preset": recipe.preset,
        "model": options.model,
        "baseline": options.baseline,
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
        "budget": options.budget,
        "single": MESSAGE,
        "recipe": recipe.model_dump(mode="json", exclude=RECIPE_ELSEWHERE),
    }
    named = {name: weights_of(getattr(options, name)) for name in ("model", "baseline")}
    if weights := {name: digest for name, digest in named.items() if digest is not None}:
        config["weights"] = weights
    out = options.out or Path("runs") / f"aime-{Path(options.model).name}"
    folder = RunFolder.create(out, config)
    folder.save_published(published_rows(options.budget), DEPARTURES)
    served_at = ((options.baseline, options.baseline_url), (options.model, options.policy_url))
    plan = Plan(
        data=name,
        tasks=tasks[: options.tasks],
        k=options.k,
        sampling=sampling,
        seed=options.seed,
        concurrency=options.concurrency,
        deadline_s=options.deadline,
    )
    served = Models(
        recipe,
        concurrency=options.concurrency,
        urls={model: url for model, url in served_at if model and url},
        kv_tokens=options.kv_tokens,
        context=options.context,
    )
    return folder, Evaluation(
        spec,
        recipe,
        {variant: models[variant] for variant in variants},
        plan,
        options.budget,
        served,
        options.retry_failed,
    )


def with_budget(section: Any, budget: int) -> Any:
    """A recipe's values with at most `budget` tokens for each call of the policy."""
    if not isinstance(section, dict):
        return section
    section = {name: with_budget(value, budget) for name, value in section.items()}
    return {**section, "max_tokens": budget} if section.get("engine") == "policy" else section


async def evaluate(evaluation: Evaluation, folder: RunFolder) -> None:
    """Sample what is missing, variant by variant, and save each variant's result when it is complete."""
    plan, log = evaluation.plan, folder.open_trajectories(evaluation.plan.seed)
    if evaluation.retry_failed and (dropped := drop_failed(log, evaluation.models, [plan.data])):
        print(f"{dropped} failed samples are run anew")
    for variant, model in evaluation.models.items():
        if missing(plan, variant, log):
            if url := evaluation.served.urls.get(model):
                await check_server(url)
            async with _opened(evaluation, variant, model) as (method, roles, tokenizer):
                await sample(plan, variant, method, roles, log, tokenizer)
        records = held(plan, variant, log)
        task_ids = [task.task_id for task in plan.tasks]
        stats = statistics([read_sample(record) for record in records], task_ids)
        result = eval_result(records, stats, task_ids, budget=evaluation.budget, seed=plan.seed, model=model)
        folder.save_evaluation(result)
    log.close()


def all_statistics(folder: RunFolder, seed: int) -> dict[str, dict[str, Statistics]]:
    """Data set -> variant -> statistics of everything in the folder that is complete, this call's and earlier ones'."""
    records = folder.read_trajectories(seed)
    found: dict[str, dict[str, Statistics]] = {}
    for result in folder.evaluations():
        if result.seed == seed:
            task_ids, k = result.notes["task_ids"], result.notes["k"]
            samples = [
                read_sample(record)
                for record in records
                if (record["variant"], record["data"]) == (result.variant, result.data)
                and record["task_id"] in task_ids
                and record["step"] < k
            ]
            found.setdefault(result.data, {})[result.variant] = statistics(samples, task_ids)
    return found


@asynccontextmanager
async def _opened(evaluation: Evaluation, variant: str, model: str) -> AsyncIterator[tuple[Method, Roles, Any]]:
    """The variant's method and its roles; closed at the end."""
    tokenizer = evaluation.served.tokenizer(model)
    async with evaluation.served.policy(model, evaluation.served.limit(model)) as policy:
        if variant == "single":
            yield SingleCall(tokenizer, evaluation.budget), Roles({"policy": policy}), tokenizer
            return
        async with open_roles(evaluation.recipe, tokenizer, open_frozen_model) as others:
            method = evaluation.spec.build(evaluation.recipe, tokenizer)
            try:
                check_roles(method, others)
                yield method, Roles({**others, "policy": policy}), tokenizer
            finally:
                await method.close()


def parser() -> argparse.ArgumentParser:
    """The options."""
    first, _, _ = (__doc__ or "").partition("\n")
    commands = argparse.ArgumentParser(prog="python -m benchmarks.aime.evaluate", description=first)
    models = commands.add_argument_group("models")
    models.add_argument("--model", required=True, metavar="ID_OR_PATH", help="the model evaluated")
    models.add_argument("--baseline", metavar="ID_OR_PATH", help="the model it started from")
    add_server_options(models)
    models.add_argument("--baseline-url", metavar="URL", help="a server that holds --baseline")
    models.add_argument(
        "--context", type=kinds.positive, metavar="TOKENS", help="the models' context, if not config.json's"
    )
    models.add_argument("--variants", nargs="+", choices=VARIANTS, help="default: all with a model")
    models.add_argument("--method", default="agentflow", metavar="NAME", help="the agent: a folder of agentic/")
    models.add_argument("--preset", default="paper", help="of the agent")
    models.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    how = commands.add_argument_group("what and how")
    how.add_argument("--data", default="aime24", metavar="NAME|FILE|HUB", help="aime24, aime25, FILE, owner/name:split")
    how.add_argument(
        "--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where named data is (default: data)"
    )
    how.add_argument("--tasks", type=kinds.positive, metavar="N", help="only the first N problems")
    how.add_argument("--k", type=kinds.positive, default=16, help="samples of each problem (default: 16)")
    how.add_argument("--temperature", type=kinds.temperature, default=0.7)
    how.add_argument("--top-p", type=kinds.share, default=0.95)
    how.add_argument(
        "--budget", type=kinds.positive, default=4096, metavar="TOKENS", help="completion tokens of one call"
    )
    how.add_argument("--seed", type=kinds.seed, default=0)
    how.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default: runs/aime-MODEL)")
    how.add_argument(
        "--retry-failed", action="store_true", help="run failed samples anew, such as those of a dead server"
    )
    how.add_argument("--concurrency", type=kinds.positive, default=16, help="samples at once")
    how.add_argument("--deadline", type=kinds.seconds, default=3600.0, metavar="SECONDS", help="for each sample")
    how.add_argument("--kv-tokens", type=kinds.positive, metavar="N", help="at most so many tokens in the KV cache")
    how.add_argument("--threads", type=kinds.positive, metavar="N", help="of PyTorch")
    return commands


if __name__ == "__main__":
    sys.exit(main())
