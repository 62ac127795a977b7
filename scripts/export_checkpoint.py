"""Export a checkpoint of a run as a folder for the hub.

    tokentrue convert to-hub runs/memagent-tiny --out release --license apache-2.0 [--seed 0] [--step 40]
    tokentrue convert to-hub RUN_DIR --out release --license apache-2.0 --checkpoint HF_FOLDER --results DIR

The folder gets weights, tokenizer, chat template, generation config, the resolved recipe (recipe.yaml) and a model
card with recipe, departures, scores and commit of the run. The second form takes the weights from another folder, such
as one that `tokentrue convert to-hf` made, and the scores from the folder of their evaluation.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness.models import weights_digest
from core.config import Recipe, RecipeError
from core.config.recipe import TRAINED
from core.engine import lora, weights
from core.hub import SMALL_FILES, CheckpointError, is_hub_id, read_json
from core.options import show_errors
from core.report import PublishedScore, build_summary
from core.report.table import markdown, render_table
from core.rollout.method import method_spec
from core.runs.run_folder import RunFolder, RunFolderError, flatten, list_checkpoints
from core.text.tokenizer import load_tokenizer

ADAPTERS = """

`adapter/` holds the run's adapters in PEFT's format, for {base}{kept}. The weights here have them merged."""


def export_checkpoint(run: RunFolder, source: Path, out: Path, base_model: str | None, card: str) -> None:
    """Copy the Hugging Face folder `source` to `out` and add the files that the hub wants, with `card` as README.md.

    Raises:
        CheckpointError: `out` exists, or `source` lacks weights, tokenizer or chat template.
    """
    if out.exists():
        raise CheckpointError(f"{out}: exists already; delete it, or choose another --out")
    dtype = weights.check(source)
    load_tokenizer(source)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in sorted({path for pattern in (*SMALL_FILES, "*.safetensors") for path in source.glob(pattern)}):
        shutil.copyfile(path, partial / path.name)
    weights.write_dtype(partial, dtype)
    if not (partial / "generation_config.json").is_file():
        ends = list(weights.eos_token_ids(source))
        (partial / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}, indent=2) + "\n")
    preset, recipe = load_preset(run.config), hide_paths(run.config, base_model)
    if preset and preset.experiment and preset.data.train == run.config["data"]["train"]:
        recipe["experiment"] = preset.experiment.model_dump(mode="json")  # how the data and the start model are made
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    (partial / "recipe.yaml").write_text(text, encoding="utf-8")
    # Policies that were trained beside are where evaluations look for them.
    beside = [role for role, place in run.config.get("roles", {}).items() if place == TRAINED]
    for name in (name for name in (lora.FOLDER, *beside) if (source / name).is_dir()):
        shutil.copytree(source / name, partial / name)
    for folder in (partial, *(partial / role for role in beside if (partial / role).is_dir())):
        change_json(folder / "config.json", "_name_or_path", base_model)
        if (folder / lora.FOLDER).is_dir():
            # After a warm start, the adapters belong to a model that is not on the hub.
            base = None if run.config.get("warm_start") else base_model
            change_json(folder / lora.FOLDER / "adapter_config.json", "base_model_name_or_path", base)
    (partial / "README.md").write_text(card, encoding="utf-8")
    partial.rename(out)


def change_json(path: Path, key: str, value: str | None) -> None:
    """Give a key that the file has another value: what is there is a path of this machine."""
    values = read_json(path)
    if key in values:
        path.write_text(json.dumps({**values, key: value}, indent=2) + "\n", encoding="utf-8")


def hide_paths(config: Mapping[str, Any], base_model: str | None) -> dict[str, Any]:
    """Return a recipe without paths of this machine: the base model for its folder, and else the names of files.

    The paths of the section `slime` are those of a cluster, and stay.
    """

    def hide(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: hide(item) for key, item in value.items()}
        if isinstance(value, list):
            return [hide(item) for item in value]
        local = isinstance(value, str) and re.fullmatch(r"((?:model:)?)(?:/|~/|\.\./)[^\n]*?([^/\n]+)/?", value)
        return f"{local[1]}{local[2]}" if local else value

    hidden = {key: value if key == "slime" else hide(value) for key, value in config.items()}
    if base_model and not is_hub_id(config["model"]["path"]):
        hidden["model"] = {**hidden["model"], "path": base_model}
    return hidden


def find_base_model(start: str, source: Path) -> str | None:
    """Return the hub id of the start model: `start` itself, or what the path of a snapshot or config.json tells."""
    snapshot = re.search(r"models--([^/]+)--([^/]+)/snapshots/", start)
    if is_hub_id(start) or snapshot:
        return start if snapshot is None else f"{snapshot[1]}/{snapshot[2]}"
    named = str(read_json(source / "config.json").get("_name_or_path") or "")
    return named if is_hub_id(named) else None


def load_preset(config: Mapping[str, Any]) -> Recipe | None:
    """Return the preset of a run; None where this repository has none of that name."""
    try:
        return method_spec(config["method"]).load(config["preset"])
    except RecipeError:
        return None


def list_settings(config: Mapping[str, Any], base_model: str | None) -> list[str]:
    """List what the run has set otherwise than its preset, as options of the command line."""
    preset = load_preset(config)
    if preset is None:
        return ["The preset is not in this repository; `recipe.yaml` is all there is of it."]
    ours, theirs = flatten(hide_paths(preset.complete(dict(config)), base_model)), flatten(preset.dump())
    return [
        f"- `--set {key}={json.dumps(ours.get(key))}` (the preset has {json.dumps(theirs.get(key))})"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and key != "departures"
    ] or ["The preset as it is."]


def list_inputs(run: RunFolder) -> list[str]:
    """Return a table of what the run rests on, and what has changed while it ran."""
    files, changes = run.inputs["files"], run.inputs["changes"]
    if not files:
        return ["The run has recorded no hashes of its data and start model."]
    rows = [
        (name, f"{entry['size']:,}", f"`{entry['sha256']}`" + (f" of {entry['of']}" if "of" in entry else ""))
        for name, entry in files.items()
    ]
    return [markdown(["File", "Bytes", "SHA-256"], *rows), "", *(f"Changed meanwhile: {c}" for c in changes)]


def has_other_weights(evaluated: RunFolder, source: Path) -> bool:
    """Say whether a folder has scores, and none of those whose model is known here is of the weights in `source`."""

    def is_same(model: str, digest: str | None) -> bool:
        path = evaluated.path / model
        if digest is None:
            return path.resolve() == source.resolve()
        # What was exported has a config.json of its own.
        is_there = weights_digest(str(path)) == digest
        return digest == own or (
            is_there and weights_digest(str(path), tensors) == weights_digest(str(source), tensors)
        )

    own, tensors = weights_digest(str(source)), ["*.safetensors"]
    scored = {(result.model, result.settings.get("weights")) for result in evaluated.evaluations() if result.model}
    known = [(model, digest) for model, digest in scored if digest or not is_hub_id(model)]
    return bool(known) and not any(is_same(*one) for one in known)


def write_model_card(
    run: RunFolder, options: argparse.Namespace, source: Path, title: str, base_model: str | None
) -> str:
    """Return the hub's README.md, with its YAML front matter. `title` names the weights, which lie in `source`."""
    name, evaluated = options.out.name, RunFolder(options.results) if options.results else run
    config, summary = run.config, build_summary(evaluated)
    method = config["method"]
    front = {
        "license": options.license,
        **({"base_model": base_model} if base_model else {}),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [method, "agentic-rl", config["algorithm"].get("adv_estimator", "grpo"), "reinforcement-learning"],
    }
    try:
        recipe = method_spec(method).recipe
        listed = recipe.model_validate(recipe.complete(dict(config))).list_departures()
    except ValueError:  # the recipe is of an earlier version, or its method is not here
        values = flatten(config)
        listed = [
            re.sub(r"\{([\w.]+)\}", lambda m: str(values.get(m[1], m[0])), line)
            for line in config.get("departures", ())
        ]
    departures = list(dict.fromkeys([*listed, *summary["departures"]]))
    published = [PublishedScore(**row) for row in evaluated.published["rows"]]
    _, _, tables = render_table({**summary, "departures": []}, published).partition("\n\n")
    commit = run.versions.get("git") or "not recorded"
    seeds = ", ".join(map(str, summary["seeds"])) or "none"
    whose = "the evaluation of these weights" if options.results else "the run, whichever of them these weights are"
    if has_other_weights(evaluated, source):
        whose = f"`{evaluated.path.name}`. **They are scores of other weights than these**, which were not evaluated"
    slime = config.get("slime")
    backend = f" --backend {slime.get('framework', 'slime')}" if slime and not run.seeds else ""
    if (run.path / "verl").is_dir():  # its checkpoints; its record is in seed-0, as ours would be
        backend = " --backend verl"
    start = (
        f"[{base_model}](https://huggingface.co/{base_model})" if base_model else "a model that has no id on the hub"
    )
    packages = ", ".join(f"{name} {run.versions.get(name)}" for name in ("python", "torch", "transformers"))
    section = config["model"].get("lora") or {}
    adapters, kept = ADAPTERS if section else "", " in 4 bits (NF4)" if section.get("load_in_4bit") else ""
    adapted = "the run's own warm-started model" if config.get("warm_start") else start
    return f"""---
{yaml.safe_dump(front, sort_keys=False)}---

# {name}

{method}, preset `{config["preset"]}` (follows: {config["follows"]}), started from {start}.
These are the weights of {title}. `recipe.yaml` is the whole recipe.{adapters.format(base=adapted, kept=kept)}

## Settings that differ from the preset

{chr(10).join(list_settings(config, base_model))}

## Departures from the source

Numbers here are those of this run. Where a line and a setting above differ, the setting holds.

{chr(10).join(f"- {line}" for line in departures) or "None."}

## What the run rests on

{chr(10).join(list_inputs(run)).strip()}

## Results

Over seeds {seeds} of {whose}.

{tables.strip().replace("## ", "### ")}

## Commands

At commit `{commit}` of the repository that this comes from, with {packages}:

```
bash agentic/{method}/run.sh --preset {name}/recipe.yaml{backend}
bash agentic/{method}/evaluate.sh --model {name} --preset {name}/recipe.yaml --serve sglang
```
"""


def choose_checkpoint(run: RunFolder, seed: int | None, step: int | None) -> tuple[Path, str]:
    """Return the checkpoint of a seed (default: the first) at a step (default: by `run.keep`), and its title.

    Raises:
        CheckpointError: there is no such seed or step; the message lists those that there are.
    """
    if not run.seeds:
        raise CheckpointError(f"{run.path}: no seed has been trained (no seed-* folder). Train first.")
    seed = run.seeds[0] if seed is None else seed
    if seed not in run.seeds:
        raise CheckpointError(f"{run.path}: no seed {seed}; there are: {', '.join(map(str, run.seeds))}")
    saved = {int(path.name.removeprefix("step-")): path for path in list_checkpoints(run.checkpoints_path(seed))}
    if not saved:
        raise CheckpointError(f"{run.checkpoints_path(seed)}: no checkpoint; train first, for run.save_every steps")
    if step is not None and step not in saved:
        known = ", ".join(map(str, saved))
        raise CheckpointError(f"{run.checkpoints_path(seed)}: no checkpoint of step {step}; there are: {known}")
    if step is None:
        chosen = run.find_trained(seed)
        assert chosen is not None
        step = int(chosen.name.removeprefix("step-"))
    return saved[step], f"seed {seed} after {step} steps"


@show_errors(CheckpointError, RunFolderError, ValueError)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    run = RunFolder(options.run)
    if options.checkpoint is None:
        source, title = choose_checkpoint(run, options.seed, options.step)
    elif options.step is not None:
        raise ValueError("--step names a checkpoint of RUN_DIR, and --checkpoint other weights: give one of them")
    else:
        source, title = options.checkpoint, f"`{options.checkpoint.name}`"
    on_slime = run.config.get("slime") and not run.seeds  # which starts from a model of its own
    start = str(run.config["slime"]["checkpoint"]["hf"] if on_slime else run.config["model"]["path"])
    base_model = options.base_model or find_base_model(start, source)
    if base_model is None:
        print("note: the card names no base model; --base-model ID gives it one", file=sys.stderr)
    card = write_model_card(run, options, source, title, base_model)
    if options.dry_run:
        print(f"# {options.out}/README.md, beside the weights of {source}\n{card}", end="")
        return 0
    export_checkpoint(run, source, options.out, base_model, card)
    print(f"{options.out} holds the weights of {title}. Read its README.md, then publish it:")
    print(f"hf upload ORGANISATION/{options.out.name} {options.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    first, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="tokentrue convert to-hub", description=first)
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="its name is the model's in the card")
    parser.add_argument(
        "--license",
        required=True,
        metavar="ID",
        help="such as apache-2.0; the license of the base model limits your choice",
    )
    parser.add_argument(
        "--base-model", metavar="ID", help="on the hub (default: what the start model's path or config.json tells)"
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--seed", type=int, help="default: the first")
    chosen.add_argument("--checkpoint", type=Path, metavar="DIR", help="weights from here instead")
    parser.add_argument("--step", type=int, help="default: the one that run.keep says")
    parser.add_argument("--results", type=Path, metavar="DIR", help="their evaluation (default: those in RUN_DIR)")
    parser.add_argument("--dry-run", action="store_true", help="print the model card, and write nothing")
    return parser
