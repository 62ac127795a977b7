"""Check a data set for a method, show its first tasks as the method will see them, and which format the model knows.

    tokentrue data check train.jsonl --method retool --preset paper --model FOLDER --set retool.max_tokens=400
    tokentrue data check train.jsonl --method retool --model Qwen/Qwen2.5-7B-Instruct
    tokentrue data check openai/gsm8k:main:train --method agent --preset seed --model MODEL

DATA is a file, a folder of save_to_disk, or OWNER/NAME:SPLIT on the hub. All records are read, and the exit status is 1
if one is refused, or a prompt that is shown does not fit. A method's tools may start, as its workspace does; no service
needs to run for this.

Where --model is a folder with weights, and all that fits, the untrained model then plays a few tasks in each format of
the method (`format` or `answer_format` of its section): one rollout is printed with every special token, and a table
says how often the format was understood: a call was made, an answer was found. Services that a rollout asks must run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

from core.config.load import replace_keys
from core.data import Notes, read_tasks
from core.hub import CheckpointError, resolve
from core.options import RecipeError, make_command_parser, show_errors
from core.policy.base import Policy, Roles
from core.rollout.method import MethodSpec, RolloutError, method_spec
from core.rollout.preview import check_templates, find_first_prompt, load_without_services
from core.rollout.runner import Failures, Runner
from core.rollout.turns import extends
from core.text.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from core.types import CALLS, FAILED_CALLS, Sampling, Task, Trajectory

SHOWN = 3
LIMITS = ("max_model_len", "context_tokens", "max_total_tokens")
KEYS = ("format", "answer_format")
"""Names the keys of a method's section that choose a format."""
ANSWERED = ("answered", "answer_boxed", "end_answered")
"""Names the metrics that say whether an answer was found. A method may have none of them."""
KV_TOKENS = 65536
"""Limits the engine's memory: a preset's own number may be meant for a GPU."""
COLUMNS = ("format", "rollouts", "made a call", "calls failed", "answer found", "reward > 0", "reply cut", "tokens")


@show_errors(OSError, RolloutError, ValueError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)

    async def show(tasks: Sequence[Task], recipe: Any, tokenizer: Any) -> bool:
        method, fits = spec.build(recipe, tokenizer), True
        try:
            for number, task in enumerate(tasks, 1):
                role, ids = await find_first_prompt(method, task)
                print(f"--- task {number}, {task.task_id}: the first prompt, for {role}, of {len(ids):,} tokens")
                print(tokenizer.decode(ids))
                print(f"--- answers: {', '.join(task.answers) or 'none'}")
                for key, limit in find_limits(recipe.model_dump()):
                    fits = fits and len(ids) < limit
                    print(f"--- {key}={limit:,}: {'fits' if len(ids) < limit else 'does NOT fit'}")
        finally:
            await method.close()
        return fits

    try:
        spec = method_spec(options.method)
        overrides = [*options.overrides, *([f"model.path={options.model}"] if options.model else [])]
        recipe = spec.load(options.preset, overrides)
        notes = Notes()
        tasks = read_tasks(options.data, notes=notes, **spec.reading_options(recipe))
        print(f"{options.data}: read {notes.records:,} records, and refused none")
        notes.tell(options.data)
        model = resolve(recipe.model.path, weights=False)
        tokenizer: Any = load_tokenizer(model)
        check_vocabulary(model, tokenizer)
        check_templates(options.data, tasks, tokenizer)
        with load_without_services(spec, options.preset, overrides) as recipe:
            fits = asyncio.run(show(tasks[:SHOWN], recipe, tokenizer))
        if fits and options.tasks and has_weights(options.model):
            asyncio.run(try_formats(spec, options.preset, overrides, tasks, tokenizer, options.tasks))
        return 0 if fits else 1
    except CheckpointError as error:
        print(f"error: {error} --model gives another model, whose tokenizer writes the prompts.", file=sys.stderr)
        return 1


def find_limits(sections: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the keys of a recipe that limit a prompt, with their values."""
    for name, section in sections.items():
        for key in LIMITS if isinstance(section, dict) else ():
            if section.get(key):
                yield f"{name}.{key}", section[key]


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
    from core.train import open_frozen_model  # here, because it loads PyTorch, which nothing else of the command needs

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
    # Of the metrics `end_NAME` a rollout has only that of its own end.
    has_answers = any(name in ANSWERED or name.startswith("end_") for each in done for name in each.metrics)
    answered = [next((each.metrics[name] for name in ANSWERED if name in each.metrics), 0.0) > 0 for each in done]
    cut = [any(turn.completion.finish_reason == "length" for turn in each.turns) for each in done]
    tokens = sum(len(turn.completion.token_ids) for each in done for turn in each.turns)
    failed, made = sum(each.metrics.get(FAILED_CALLS, 0.0) for each in done), sum(map(count_calls, done))
    return (
        f"{len(done)} of {len(played)}",
        f"{sum(count_calls(each) > 0 for each in done)}" if has_calls else "-",
        f"{failed:g} of {made:g}" if has_calls else "-",
        f"{sum(answered)}" if has_answers else "-",
        f"{sum((each.reward or 0.0) > 0 for each in done)}",
        f"{sum(cut)}",
        f"{tokens / max(1, len(done)):.0f}",
    )


def has_weights(model: str | None) -> bool:
    """Return whether `model` is a folder with weights: a hub id would be downloaded."""
    return model is not None and any(Path(model).glob("*.safetensors"))


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("data check", __doc__)
    add = parser.add_argument
    add("data", metavar="DATA")
    add("--method", required=True, help="a name in agentic/, or a folder of your own")
    add("--preset", default="tiny", help="a name in presets/ of the method, or a file (default: tiny)")
    add("--model", metavar="FOLDER", help="the model's folder or hub id (default: the preset's)")
    add("--tasks", type=int, default=8, metavar="N", help="tasks to play in each format; 0 plays none (default: 8)")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe")
    return parser
