"""Plays a few tasks with an untrained model in each format of a method, and says how often the model understood it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

from core.config.load import replace_keys
from core.options import RecipeError
from core.policy.base import Policy, Roles
from core.rollout.method import MethodSpec
from core.rollout.runner import Failures, Runner
from core.rollout.turns import extends
from core.text.tokenizer import Tokenizer
from core.train import open_frozen_model
from core.types import CALLS, FAILED_CALLS, Sampling, Task, Trajectory

KEYS = ("format", "answer_format")
"""Names the keys of a method's section that choose a format."""
ANSWERED = ("answered", "answer_boxed", "end_answered")
"""Names the metrics that say whether an answer was found; a method has one of them."""
KV_TOKENS = 65536
"""Limits the engine's memory: a preset's own number may be meant for a GPU."""
COLUMNS = ("format", "rollouts", "made a call", "calls failed", "answer found", "reward > 0", "reply cut", "tokens")


def list_formats(recipe: Any, method: str) -> tuple[str, tuple[str, ...]]:
    """Return the key of a recipe that chooses the method's format, and its choices; a method may have none."""
    section = getattr(recipe, method, None)
    for name in KEYS:
        if section is not None and name in type(section).model_fields:
            return f"{method}.{name}", get_args(type(section).model_fields[name].annotation)
    return "", ("as it is",)


async def try_formats(
    spec: MethodSpec, preset: str, overrides: Sequence[str], tasks: Sequence[Task], tokenizer: Tokenizer, count: int
) -> None:
    """Print a rollout in each format of the method, and a table of all: `count` tasks, drawn at random."""
    recipe = spec.load(preset, overrides)
    key, formats = list_formats(recipe, spec.name)
    tasks = Random(0).sample(list(tasks), min(count, len(tasks)))
    context = recipe.model.max_model_len
    kv_tokens = max(context or 0, min(recipe.inference.kv_tokens, KV_TOKENS))
    limited = replace_keys(recipe, {"inference.kv_tokens": kv_tokens, "model.max_model_len": context or kv_tokens})
    rows: list[tuple[str, ...]] = [COLUMNS]
    async with open_frozen_model(recipe.model.path, limited) as policy:
        for form in formats:
            name = f"{key}={form}" if key else spec.name
            print(f"=== {name}: {len(tasks)} tasks", flush=True)
            try:
                changed = spec.load(preset, [*overrides, *([name] if key else [])])
                played = await play(spec, changed, tasks, tokenizer, policy)
            except RecipeError as error:
                print(f"--- not for this model and preset: {error}")
                continue
            for line in write_rollout(played, tokenizer):
                print(line)
            if (failures := Failures(played)).counts:
                print(f"--- failed: {failures.describe()}")
            rows.append((form, *count_understood(played)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("=== how often the untrained model understood a format")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if key:
        print(f"--- choose one with --set {key}=NAME")


async def play(
    spec: MethodSpec, recipe: Any, tasks: Sequence[Task], tokenizer: Tokenizer, policy: Policy
) -> list[Trajectory]:
    """Run one rollout of each task; the model plays every role that the method asks."""
    method = spec.build(recipe, tokenizer)
    if method.needs:
        print(f"--- the roles {', '.join(method.needs)} are played by this model, too")
    rollout = recipe.rollout
    sampling = Sampling(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k)
    roles = Roles(dict.fromkeys(("policy", *method.needs), policy))
    try:
        runner = Runner(method, roles, concurrency=len(tasks), deadline_s=rollout.deadline_s)
        return [each for group in await runner.run_groups(tasks, 1, sampling, 0) for each in group]
    finally:
        await method.close()


def write_rollout(played: Sequence[Trajectory], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the turns of the first rollout that made a call, else of the first with a turn, as the model has them.

    Special tokens are shown; of a prompt that continues the turn before, what is new. A terminal obeys control
    characters, so those are escaped.
    """
    shown = next((each for each in played if count_calls(each)), next((each for each in played if each.turns), None))
    before = None
    for number, turn in enumerate(shown.turns if shown else (), 1):
        start = len(before.prompt_ids) + len(before.completion.token_ids) if before else 0
        start = start if before and extends(turn.prompt_ids, before) else 0
        for name, ids in ((f"prompt of {turn.role}", turn.prompt_ids[start:]), ("reply", turn.completion.token_ids)):
            text = tokenizer.decode(ids, skip_special_tokens=False)
            yield f"--- turn {number}, {name}, {len(ids):,} tokens{' more' if start and name != 'reply' else ''}"
            yield "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
        before = turn
    if shown:
        yield f"--- ended as {shown.status}, reward {shown.reward}"


def count_calls(trajectory: Trajectory) -> float:
    return sum(value for name, value in trajectory.metrics.items() if name.startswith(CALLS))


def count_understood(played: Sequence[Trajectory]) -> tuple[str, ...]:
    """Return the cells of a row of the table, behind its name."""
    done = [each for each in played if each.status != "failed"]
    has_calls = any(name.startswith(CALLS) for each in done for name in each.metrics)
    answered = [next((each.metrics[name] for name in ANSWERED if name in each.metrics), 0.0) > 0 for each in done]
    cut = [any(turn.completion.finish_reason == "length" for turn in each.turns) for each in done]
    tokens = sum(len(turn.completion.token_ids) for each in done for turn in each.turns)
    failed, made = sum(each.metrics.get(FAILED_CALLS, 0.0) for each in done), sum(map(count_calls, done))
    return (
        f"{len(done)} of {len(played)}",
        f"{sum(count_calls(each) > 0 for each in done)}" if has_calls else "-",
        f"{failed:g} of {made:g}" if has_calls else "-",
        f"{sum(answered)}",
        f"{sum((each.reward or 0.0) > 0 for each in done)}",
        f"{sum(cut)}",
        f"{tokens / max(1, len(done)):.0f}",
    )


def has_weights(model: str | None) -> bool:
    """Return whether `model` is a folder with weights: a hub id would be downloaded."""
    return model is not None and any(Path(model).glob("*.safetensors"))
