"""Copy what a replay of one step needs into a folder of its own, to keep it or to hand it on.

A bundle is a small run folder: the recipe, the versions, the start model, the checkpoint before the step with the
optimizer's state, the recorded rollouts, their tasks, and checksums of all of it and of the weights after the step.
With run.record_every=1 every step can be bundled. A step after one of the newest two checkpoints needs the rollouts
since that checkpoint, an earlier step all rollouts from step 1. With run.save_every=1 the last steps need the fewest.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from core.data.files import sha256, write_jsonl
from core.data.tasks import iter_tasks
from core.engine import weights
from core.inspect.export import write_record
from core.inspect.replay import SUMS, TASKS, Replay, find_last_step
from core.inspect.rescore import ReplayError, check_task
from core.options import show_errors
from core.rollout.method import MethodSpec, method_spec
from core.runs.files import make_folder, write_text
from core.runs.record import RecordedRollout
from core.runs.run_folder import RunFolder


def write_bundle(folder: RunFolder, seed: int, step: int, out: Path) -> list[str]:
    """Write the bundle of a step into the new folder `out` and return the names of its files.

    Raises:
        ReplayError: `out` is there already, or the run does not have what a replay needs.
    """
    spec = method_spec(folder.config["method"])
    recipe = spec.load(str(folder.path / "config.yaml"))
    replay = Replay(folder, recipe, seed, step)
    wanted = {rollout.task_id: rollout for groups in replay.recorded.values() for group in groups for rollout in group}
    if out.exists():
        raise ReplayError(f"{out} is there already; choose another --out")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed call has left
    try:
        names = _fill(partial, replay, spec, wanted)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return names


def _fill(out: Path, replay: Replay, spec: MethodSpec, wanted: Mapping[str, RecordedRollout]) -> list[str]:
    """Write the files of a bundle with the tasks of the rollouts `wanted`, and return their names."""
    folder, recipe, seed, step = replay.folder, replay.recipe, replay.seed, replay.last
    found = iter_tasks(recipe.data.train, **spec.reading_options(recipe))
    by_id = {task.task_id: task for task in found if task.task_id in wanted}
    tasks = [check_task(by_id.get(name), rollout, Path(recipe.data.train)) for name, rollout in wanted.items()]
    target = out / f"seed-{seed}"
    make_folder(target)
    for name in ("config.yaml", "versions.json"):
        shutil.copyfile(folder.path / name, out / name)
    write_jsonl(out / TASKS, tasks)
    _copy_model(replay.start, out / "warm_start")
    if replay.checkpoint is not None:
        shutil.copytree(replay.checkpoint, target / "checkpoints" / replay.checkpoint.name)
    steps = range(replay.first, step + 1)
    metrics = [each for each in folder.read_metrics(seed) if each["stage"] == "train" and each["step"] in steps]
    write_text(target / "metrics.jsonl", "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in metrics))
    recorded = (rollout for groups in replay.recorded.values() for group in groups for rollout in group)
    write_record(recorded, target / "rollouts.jsonl.gz")
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    sums = [f"{sha256(out / name)}  {name}\n" for name in names]
    after = folder.checkpoints_path(seed) / f"step-{step:06d}" / "model.safetensors"
    if after.is_file():
        sums.append(f"{sha256(after)}  {after.relative_to(folder.path).as_posix()}\n")
    write_text(out / SUMS, "".join(sums))
    return names


def _copy_model(folder: Path, target: Path) -> None:
    """Copy the files of a model; a folder of the hub has links, and other files beside."""
    make_folder(target)
    for path in [*weights.weight_files(folder), *folder.iterdir()]:
        if path.suffix in (".json", ".txt", ".jinja", ".model", ".safetensors"):
            shutil.copyfile(path, target / path.name)


@show_errors(OSError, ValueError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    folder = RunFolder(options.run_dir)
    seed = folder.choose_seed(options.seed)
    step = options.step or find_last_step(folder, seed)
    names = write_bundle(folder, seed, step, options.out)
    size = sum((options.out / name).stat().st_size for name in names)
    print(f"{options.out}: step {step} of seed {seed}, {len(names)} files, {size / 1e6:.1f} MB")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue inspect bundle", description=__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a folder that a run has left")
    parser.add_argument("--step", type=int, metavar="N", help="the step to replay (default: the last one)")
    parser.add_argument("--seed", type=int, help="which seed, if there are several")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    return parser
