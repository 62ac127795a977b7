"""Evaluate an orchestrator on the real tau2-bench under one of three named protocols (protocols.py).

    python -m benchmarks.tau2.evaluate --protocol standard --model Qwen/Qwen3-8B --policy-url http://host:30000 \\
        --tau2-python TAU2/bin/python --tau2-data TAU2_DATA --trials 4 \\
        --set toolorchestra.models.user="{url: http://host:30001/v1, name: Qwen/Qwen3-32B}" --user user --judge user

How to get tau2-bench: README.md beside this file. Statistics are explained in statistics.py. Each conversation is
written as it ends; the same command goes on where a killed one stopped, and more --trials add to what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.environment import EnvironmentFault
from agentic.toolorchestra.rollout import SPEC, ToolOrchestra
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import tau2_tasks
from benchmarks import kinds
from benchmarks.cells import EXPECTED_ERRORS, EvaluationError, weights_of
from benchmarks.models import Models, check_server
from benchmarks.plan import Plan, drop_failed, held, missing
from benchmarks.serving import add_server_options, check_server_options, server
from benchmarks.tau2.pin import departures
from benchmarks.tau2.play import play
from benchmarks.tau2.protocols import NOTHING, PROTOCOLS, DoNothing, Recorded, under
from benchmarks.tau2.results import (
    DEPARTURES,
    all_statistics,
    eval_result,
    published_rows,
    read_trial,
    write_official,
    write_results,
)
from benchmarks.tau2.statistics import statistics
from core.engine.policy import open_frozen_model
from core.policy.base import Roles
from core.report import write_report
from core.rollout.method import Method, check_roles
from core.rollout.roles import open_roles
from core.runs.files import read_json, write_json
from core.runs.run_folder import RunFolder, flatten
from core.types import Sampling

DOMAINS = ("retail", "airline", "telecom", "telecom-solo")
WORLD_OPTIONS = "recipe.toolorchestra.environment.options"
PLACE = ("python", "data", "processes")
"""Options of the world that no conversation follows from, so that a later call may change them."""
MARGIN = 3000
"""Tokens of the context that are left to what the chat template puts around messages and tools."""


@dataclass(frozen=True)
class Evaluation:
    """Everything that a call asks for."""

    recipe: ToolOrchestraRecipe
    variants: Sequence[str]
    domains: Sequence[str]
    split: str
    limit: int | None
    trials: int
    sampling: Sampling
    concurrency: int
    deadline_s: float
    options: dict[str, Any]
    served: Models
    retry_failed: bool


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        folder, evaluation = prepare(options)
        with folder.lock(), server(options, folder.path) as urls:
            evaluation.served.urls |= urls
            text = asyncio.run(evaluate(evaluation, folder))
            write_report(folder)
    except (*EXPECTED_ERRORS, EnvironmentFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    print(f"{folder.path}: tau2.md, tau2.json, report.html; official/ is read by tau2's own tools")
    return 0


def prepare(options: argparse.Namespace) -> tuple[RunFolder, Evaluation]:
    """Options into what is to be done, checked as far as can be without running anything."""
    variants = options.variants or [options.protocol, NOTHING]
    if unknown := set(variants) - {options.protocol, NOTHING}:
        raise EvaluationError(
            f"variant {unknown.pop()!r}: the variants are the protocol, {options.protocol}, and {NOTHING}"
        )
    if options.protocol in variants and options.model is None:
        raise EvaluationError("no model: name it with --model (and --policy-url of a server that holds it)")
    check_server_options(options)
    if options.protocol in variants and options.user is None and set(options.domains) != {"telecom-solo"}:
        raise EvaluationError("nobody plays the user: --user NAME under toolorchestra.models, or `scripted` for tests")
    overrides = [*options.overrides, *([f"model.path={options.model}"] if options.model else [])]
    recipe = SPEC.load(options.preset, overrides)
    for role in (options.user, options.judge):
        if role not in (None, "scripted", *recipe.toolorchestra.models):
            raise EvaluationError(f"{role!r} is not under toolorchestra.models; add it with --set")
    worlds = {
        "python": options.tau2_python,
        "data": options.tau2_data,
        "processes": options.processes,
        "user": options.user,
        "judge": options.judge,
        "max_steps": options.max_steps,
        "max_errors": options.max_errors,
    }
    served = Models(
        recipe,
        concurrency=options.concurrency,
        urls={options.model: options.policy_url} if options.model and options.policy_url else {},
        kv_tokens=options.kv_tokens,
        context=options.context,
    )
    if options.protocol in variants:
        context = served.limit(options.model) - recipe.toolorchestra.max_tokens - MARGIN
        if context < 1:
            raise EvaluationError(
                f"a context of {served.limit(options.model)} tokens leaves none for the conversation beside "
                f"toolorchestra.max_tokens and {MARGIN} for its template; lower it with --set, or give --context"
            )
        recipe = under(options.protocol, recipe, worlds, context)
    if threads := options.threads or recipe.engine.threads:
        torch.set_num_threads(threads)
    sampling = Sampling(temperature=options.temperature, top_p=options.top_p)
    config = {
        "method": "toolorchestra",
        "preset": recipe.preset,
        "protocol": options.protocol,
        "model": options.model,
        "split": options.split,
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
        "recipe": recipe.model_dump(mode="json", include={"toolorchestra", "roles"}),
    }
    if (weights := weights_of(options.model)) is not None:
        config["weights"] = weights
    players = (options.model or NOTHING, _user(recipe, options.user))
    name = "-".join(["tau2", options.protocol, *(Path(player).name for player in players if player)])
    out = options.out or Path("runs") / name
    folder = RunFolder.create(out, config, may_differ=[f"{WORLD_OPTIONS}.{place}" for place in PLACE])
    folder.save_published(published_rows(), DEPARTURES)
    return folder, Evaluation(
        recipe=recipe,
        variants=variants,
        domains=options.domains,
        split=options.split,
        limit=options.tasks,
        trials=options.trials,
        sampling=sampling,
        concurrency=options.concurrency,
        deadline_s=options.deadline,
        options=worlds,
        served=served,
        retry_failed=options.retry_failed,
    )


def _check_version(folder: Path, about: Mapping[str, Any]) -> None:
    """Conversations of one folder are played on one tau2-bench with one set of data files.

    Raises:
        EvaluationError: the folder's were played on another.
    """
    path, now = folder / "tau2_version.json", {name: about[name] for name in ("version", "commit", "blobs")}
    if path.is_file() and (before := read_json(path)) != now:
        changed = [f"{key} was {value!r}" for key, value in flatten(before).items() if flatten(now).get(key) != value]
        raise EvaluationError(
            f"{folder}: its conversations were played on another tau2-bench "
            f"({'; '.join(changed) or 'with fewer files'}). Give that one with --tau2-python and "
            "--tau2-data, or choose another folder with --out."
        )
    write_json(path, now)


async def evaluate(evaluation: Evaluation, folder: RunFolder) -> str:
    """Play what is missing, variant by variant and domain by domain; the text of tau2.md."""
    options, log = evaluation.options, folder.open_trajectories(0)
    workers = Workers(options["python"], options["data"], options["processes"])
    try:
        about = await workers.pick().call("about")
        _check_version(folder.path, about)
        if evaluation.retry_failed and (dropped := drop_failed(log, evaluation.variants, evaluation.domains)):
            print(f"{dropped} failed conversations are played anew")
        plans = {domain: await _plan(evaluation, workers, domain) for domain in evaluation.domains}
        for variant in evaluation.variants:
            of_variant = {d: replace(plan, k=1) if variant == NOTHING else plan for d, plan in plans.items()}
            if any(missing(plan, variant, log) for plan in of_variant.values()):
                async with _opened(evaluation, variant, workers) as (method, roles, tokenizer):
                    for plan in of_variant.values():
                        await play(plan, variant, method, roles, log, tokenizer)
            records = [record for plan in of_variant.values() for record in held(plan, variant, log)]
            for domain in evaluation.domains:
                own = [record for record in records if record["data"] == domain]
                folder.save_evaluation(
                    eval_result(own, statistics([read_trial(r) for r in own]), _model(folder, variant))
                )
                who = _who(evaluation, folder, variant, domain)
                limits = {name: options[name] for name in ("max_steps", "max_errors")}
                await write_official(folder.path, workers, own, limits, who)
        found = all_statistics(folder, list(log.records()))
        domains = list(dict.fromkeys(domain for stats in found.values() for domain in stats.tasks))
        return write_results(folder.path, found, about, departures(about, _real(domains)))
    finally:
        log.close()
        workers.close()


async def _plan(evaluation: Evaluation, workers: Workers, domain: str) -> Plan:
    solo = domain.endswith("-solo")
    tasks = await tau2_tasks(workers, domain.removesuffix("-solo"), split=evaluation.split, solo=solo)
    return Plan(
        data=domain,
        tasks=tasks[: evaluation.limit],
        k=evaluation.trials,
        sampling=evaluation.sampling,
        seed=0,
        concurrency=evaluation.concurrency,
        deadline_s=evaluation.deadline_s,
    )


@asynccontextmanager
async def _opened(evaluation: Evaluation, variant: str, workers: Workers) -> AsyncIterator[tuple[Method, Roles, Any]]:
    """The variant's method and its roles; closed at the end."""
    if variant == NOTHING:
        yield DoNothing(workers), Roles({}), None
        return
    model, served = evaluation.recipe.model.path, evaluation.served
    if url := served.urls.get(model):
        await check_server(url)
    tokenizer = served.tokenizer(model)
    async with (
        served.policy(model, served.limit(model)) as policy,
        open_roles(evaluation.recipe, tokenizer, open_frozen_model) as others,
    ):
        method = Recorded(ToolOrchestra(evaluation.recipe, tokenizer))
        try:
            check_roles(method, others)
            yield method, Roles({**others, "policy": policy}), tokenizer
        finally:
            await method.close()


def _who(evaluation: Evaluation, folder: RunFolder, variant: str, domain: str) -> dict[str, Any]:
    """The two sides as tau2's own files name them; it knows solo runs by these names."""
    solo = domain.endswith("-solo")
    user = "hangs_up" if variant == NOTHING else _user(evaluation.recipe, evaluation.options["user"])
    return {
        "agent": {"implementation": "llm_agent_solo" if solo else variant, "llm": _model(folder, variant)},
        "user": {"implementation": "dummy_user" if solo else "user_simulator", "llm": user},
    }


def _user(recipe: ToolOrchestraRecipe, name: str | None) -> str | None:
    """The user by the name of its model, if it has one."""
    model = recipe.toolorchestra.models.get(name or "")
    return model.name or name if model else name


def _model(folder: RunFolder, variant: str) -> str:
    return NOTHING if variant == NOTHING else str(folder.config["model"])


def _real(domains: Sequence[str]) -> list[str]:
    return [domain.removesuffix("-solo") for domain in domains]


def parser() -> argparse.ArgumentParser:
    """The options."""
    first, _, _ = (__doc__ or "").partition("\n")
    commands = argparse.ArgumentParser(prog="python -m benchmarks.tau2.evaluate", description=first)
    models = commands.add_argument_group("models")
    models.add_argument("--model", metavar="ID_OR_PATH", help="the orchestrator")
    add_server_options(models)
    models.add_argument("--context", type=kinds.positive, metavar="TOKENS", help="its context, if not config.json's")
    models.add_argument("--preset", default="paper", help="recipe of experts and their models (default: paper)")
    models.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    models.add_argument("--user", metavar="NAME", help="who plays the user: a name under toolorchestra.models")
    models.add_argument("--judge", metavar="NAME", help="of assertions in words (40 tasks of retail): likewise")
    world = commands.add_argument_group("tau2-bench")
    world.add_argument("--tau2-python", metavar="PYTHON", help="the interpreter that has it (default: this one)")
    world.add_argument("--tau2-data", metavar="DIR", help="its `data` folder (default: beside its sources)")
    world.add_argument("--processes", type=kinds.positive, default=2, help="of tau2, which play and grade (default: 2)")
    world.add_argument("--max-steps", type=kinds.positive, default=200)
    world.add_argument("--max-errors", type=kinds.positive, default=10)
    how = commands.add_argument_group("what and how")
    how.add_argument("--protocol", choices=PROTOCOLS, default="standard")
    how.add_argument("--variants", nargs="+", metavar="ARM", help=f"default: the protocol and {NOTHING}")
    how.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS[:3]), metavar="DOMAIN")
    how.add_argument("--split", default="base", help="of tau2's tasks: base (all), train, test")
    how.add_argument("--tasks", type=kinds.positive, metavar="N", help="only the first N of each domain")
    how.add_argument("--trials", type=kinds.positive, default=4)
    how.add_argument("--temperature", type=kinds.temperature, default=0.0)
    how.add_argument("--top-p", type=kinds.share, default=1.0)
    how.add_argument("--out", type=Path, metavar="DIR", help="default: runs/tau2-PROTOCOL-MODEL-USER")
    how.add_argument("--retry-failed", action="store_true", help="play failed conversations anew")
    how.add_argument("--concurrency", type=kinds.positive, default=16, help="conversations at once")
    how.add_argument("--deadline", type=kinds.seconds, default=3600.0, metavar="SECONDS", help="for each conversation")
    how.add_argument("--kv-tokens", type=kinds.positive, metavar="N", help="at most so many tokens in the KV cache")
    how.add_argument("--threads", type=kinds.positive, metavar="N", help="of PyTorch")
    return commands


if __name__ == "__main__":
    sys.exit(main())
