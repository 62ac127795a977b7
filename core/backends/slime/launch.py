"""Start a method on slime or vime from a preset.

    tokentrue train METHOD --backend slime|vime --preset NAME --out DIR [--set key.path=value ...]
                           [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither of them nor a GPU. Nothing is ever killed, and no Ray
cluster is started unless asked. The same command again goes on from the newest checkpoint.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from core.backends.checks import REPOSITORY
from core.backends.slime import checks, flags, job
from core.config import Recipe, RecipeError, import_functions
from core.data.files import DataError
from core.data.hub_sets import locate
from core.options import show_errors
from core.rollout.method import method_spec
from core.runs.inputs import hash_inputs
from core.runs.run_folder import RunFolder, RunFolderError
from core.training_options import make_training_parser


class LaunchError(RuntimeError):
    """Says that the job cannot start; the message lists every reason with its fix."""


@show_errors(DataError, OSError, RecipeError, RunFolderError, LaunchError)
def main(arguments: list[str] | None = None) -> int:
    options = make_training_parser("slime", "vime").parse_args(arguments)
    spec = method_spec(options.method)
    recipe = choose_framework(spec.load(options.preset, options.overrides), options.backend)
    import_functions(recipe)
    paths = flags.Paths(options.out or Path("runs") / f"{spec.name}-{recipe.preset}")
    script = job.write_script(recipe, paths)
    if options.dry_run:
        print(script, end="")
        for line in recipe.list_departures():
            print(f"departure: {line}", file=sys.stderr)
        for line in checks.find_open_points(recipe):
            print(f"fill in: {line}", file=sys.stderr)
        return 0
    return start_job(recipe, paths, script, start_ray=options.start_ray, accept_changes=options.accept_changes)


def choose_framework(recipe: Recipe, backend: str) -> Recipe:
    """Return the recipe for `backend`, slime or vime; one without a cluster as it is.

    Raises:
        RecipeError: the recipe is vime's.
    """
    if recipe.slime is None:
        return recipe
    if recipe.slime.framework == "vime" and backend != "vime":
        raise RecipeError("slime.framework is vime; start with --backend vime")
    return recipe.model_copy(update={"slime": recipe.slime.model_copy(update={"framework": backend})})


def start_job(
    recipe: Recipe, paths: flags.Paths, script: str, *, start_ray: bool = False, accept_changes: bool = False
) -> int:
    """Check everything, write the run folder, run the script to the job's end and return its exit status.

    Raises:
        LaunchError: something is missing, or Ray does not start.
    """
    slime = flags.cluster(recipe)
    ray = job.ray_cluster(slime)
    problems = checks.find_problems(recipe)
    no_ray = ray.find_problem("slime.ray", slime.framework)
    if no_ray and not (start_ray and not problems):
        problems.append(no_ray)
    if not no_ray and (running := ray.find_running_job(paths.recipe)):
        problems.append(running)
    if problems:
        raise LaunchError("the job cannot start:\n" + "\n".join(f"- {problem}" for problem in problems))
    folder = RunFolder.create(paths.out, recipe.dump(), may_differ=("departures", "health"), complete=recipe.complete)
    with folder.lock():
        files = {"data.train": recipe.data.train, "data.eval": recipe.data.eval if recipe.run.eval_every else None}
        data = {key: locate(path, REPOSITORY) for key, path in files.items() if path}
        served = {f"slime.sglang.models.{name}": model.path for name, model in slime.sglang.models.items()}
        models = {name: Path(path) for name, path in {"model": slime.checkpoint.hf, **served}.items()}
        folder.check_inputs(hash_inputs(data, models), accept=accept_changes)
        paths.script.write_text(script, encoding="utf-8")
        if no_ray and subprocess.run(shlex.split(ray.start_head)).returncode:
            raise LaunchError(f"Ray did not start, see above: {ray.start_head}")
        return subprocess.run(["bash", str(paths.script)]).returncode
