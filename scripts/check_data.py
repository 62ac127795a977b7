"""Check a data set for a method, show its first tasks as the method will see them, and which format the model knows.

    tokentrue data check train.jsonl --method retool --preset paper --model FOLDER --set retool.max_tokens=400
    tokentrue data check train.jsonl --method retool --model Qwen/Qwen2.5-7B-Instruct
    tokentrue data check openai/gsm8k:main:train --method agent --preset seed --model MODEL

DATA is a file, a folder of save_to_disk, or OWNER/NAME:SPLIT on the hub. All records are read, and the exit status is 1
if one is refused. A method's tools may start, as its workspace does; no service needs to run for this.

Where --model is a folder with weights, the untrained model then plays a few tasks in each format of the method (the
key `format` of its section): one rollout is printed with every special token, and a table says how often the format
was understood: a call was made, an answer was found. Services that a rollout asks must run for this.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any

SHOWN = 3
LIMITS = ("max_model_len", "context_tokens", "max_total_tokens")


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    from core.data import Notes, read_tasks
    from core.hub import CheckpointError, resolve
    from core.rollout.method import RolloutError, method_spec
    from core.rollout.preview import check_templates, find_first_prompt, load_without_services
    from core.text.tokenizer import check_vocabulary, load_tokenizer
    from core.types import Task
    from scripts.try_formats import has_weights, try_formats

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
    except (OSError, RolloutError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def find_limits(sections: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the keys of a recipe that limit a prompt, with their values."""
    for name, section in sections.items():
        for key in LIMITS if isinstance(section, dict) else ():
            if section.get(key):
                yield f"{name}.{key}", section[key]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokentrue data check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", metavar="DATA")
    add("--method", required=True, help="a name in agentic/, or a folder of your own")
    add("--preset", default="tiny", help="a name in presets/ of the method, or a file (default: tiny)")
    add("--model", metavar="FOLDER", help="the model's folder or hub id (default: the preset's)")
    add("--tasks", type=int, default=8, metavar="N", help="tasks to play in each format; 0 plays none (default: 8)")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe")
    return parser
