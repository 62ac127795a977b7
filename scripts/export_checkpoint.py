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
import shutil
import sys
from pathlib import Path

import yaml
from safetensors import SafetensorError, safe_open

from core.engine import weights
from core.hub import SMALL_FILES, CheckpointError, is_hub_id
from core.report import PublishedScore, build_summary
from core.report.table import render_table
from core.runs.run_folder import RunFolder, RunFolderError
from core.text.tokenizer import load_tokenizer
from core.train import checkpoint


def export_checkpoint(
    run: RunFolder,
    source: Path,
    out: Path,
    *,
    title: str,
    license_id: str,
    base_model: str | None = None,
    results: RunFolder | None = None,
) -> None:
    """Copy the Hugging Face folder `source` to `out` and add the files that the hub wants.

    `title` names the weights in the card. `results` is the folder of their evaluation; with None the card shows the
    run's own evaluations.

    Raises:
        CheckpointError: `out` exists, or `source` lacks weights, tokenizer or chat template.
    """
    if out.exists():
        raise CheckpointError(f"{out}: exists already; delete it, or choose another --out")
    for path in weights.weight_files(source):
        check_readable(path)
    load_tokenizer(source)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in sorted({path for pattern in (*SMALL_FILES, "*.safetensors") for path in source.glob(pattern)}):
        shutil.copyfile(path, partial / path.name)
    if not (partial / "generation_config.json").is_file():
        ends = list(weights.eos_token_ids(source))
        (partial / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}, indent=2) + "\n")
    shutil.copyfile(run.path / "config.yaml", partial / "recipe.yaml")
    card = write_model_card(run, out.name, title=title, license_id=license_id, base_model=base_model, results=results)
    (partial / "README.md").write_text(card, encoding="utf-8")
    partial.rename(out)


def check_readable(path: Path) -> None:
    """Raise CheckpointError if a safetensors file is torn: its header says how long it must be."""
    try:
        with safe_open(path, "pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); copy or convert it again") from error


def write_model_card(
    run: RunFolder,
    name: str,
    *,
    title: str,
    license_id: str,
    base_model: str | None = None,
    results: RunFolder | None = None,
) -> str:
    """Return the hub's README.md, with its YAML front matter."""
    evaluated = results or run
    config, summary = run.config, build_summary(evaluated)
    method = config["method"]
    front = {
        "license": license_id,
        **({"base_model": base_model} if base_model else {}),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [method, "agentic-rl", "grpo", "reinforcement-learning"],
    }
    departures = list(dict.fromkeys([*config.get("departures", ()), *summary["departures"]]))
    published = [PublishedScore.from_json(row) for row in evaluated.published["rows"]]
    _, _, tables = render_table({**summary, "departures": []}, published).partition("\n\n")
    commit = run.versions.get("git") or "not recorded"
    seeds = ", ".join(map(str, summary["seeds"])) or "none"
    whose = "the evaluation of these weights" if results else "the run, whichever of them these weights are"
    slime = config.get("slime")
    backend = f" --backend {slime.get('framework', 'slime')}" if slime and not run.seeds else ""
    start = f"[{base_model}](https://huggingface.co/{base_model})" if base_model else f"`{config['model']['path']}`"
    return f"""---
{yaml.safe_dump(front, sort_keys=False)}---

# {name}

{method}, preset `{config["preset"]}` (follows: {config["follows"]}), started from {start}.
These are the weights of {title}. `recipe.yaml` is the whole recipe.

## Departures from the source

{chr(10).join(f"- {line}" for line in departures) or "None."}

## Results

Over seeds {seeds} of {whose}.

{tables.strip().replace("## ", "### ")}

## Commands

At commit `{commit}` of the repository that this comes from:

```
bash agentic/{method}/run.sh --preset recipe.yaml{backend}
bash agentic/{method}/evaluate.sh --model {name} --serve sglang
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
    saved = {int(path.name.removeprefix("step-")): path for path in checkpoint.steps(run.checkpoints_path(seed))}
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


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        run = RunFolder(options.run)
        if options.checkpoint is None:
            source, title = choose_checkpoint(run, options.seed, options.step)
        else:
            source, title = options.checkpoint, f"`{options.checkpoint.name}`"
        start = str(run.config["model"]["path"])
        base_model = options.base_model or (start if is_hub_id(start) else None)
        results = RunFolder(options.results) if options.results else None
        export_checkpoint(
            run,
            source,
            options.out,
            title=title,
            license_id=options.license,
            base_model=base_model,
            results=results,
        )
    except (CheckpointError, RunFolderError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
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
        "--base-model", metavar="ID", help="on the hub (default: the recipe's model.path if it is an id)"
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--seed", type=int, help="default: the first")
    chosen.add_argument("--checkpoint", type=Path, metavar="DIR", help="weights from here instead")
    parser.add_argument("--step", type=int, help="default: the one that run.keep says")
    parser.add_argument("--results", type=Path, metavar="DIR", help="their evaluation (default: those in RUN_DIR)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
