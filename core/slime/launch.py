"""Start a method on slime from a preset.

python -m core.slime.launch METHOD --preset NAME --out DIR [--set key.path=value ...] [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither slime nor a GPU. Nothing is ever killed, and no Ray
cluster is started unless asked. The same command again goes on from the newest checkpoint.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from core.config import Recipe, RecipeError
from core.rollout.method import method_spec
from core.runs.run_folder import RunFolder, RunFolderError
from core.slime import checks, flags, job


class LaunchError(RuntimeError):
    """The job cannot start; the message lists every reason with its fix."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m core.slime.launch", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("method", help="a folder of agentic/")
    parser.add_argument("--preset", default="seed", help="a name in presets/ of the method, or a file")
    parser.add_argument(
        "--out", type=Path, help="run folder, on a disk that every node sees; default runs/METHOD-PRESET"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dry-run", action="store_true", help="print the script that would run and stop")
    parser.add_argument("--start-ray", action="store_true", help="start Ray's head on this machine if none answers")
    options = parser.parse_args(arguments)
    try:
        spec = method_spec(options.method)
        recipe = spec.load(options.preset, options.overrides)
        paths = flags.Paths(options.out or Path("runs") / f"{spec.name}-{recipe.preset}")
        script = job.script(recipe, paths)
        if options.dry_run:
            print(script, end="")
            if unreached := checks.head_problem(flags.cluster(recipe)):
                print(f"warning: {unreached}", file=sys.stderr)
            return 0
        return launch(recipe, paths, script, start_ray=options.start_ray)
    except (RecipeError, RunFolderError, LaunchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def launch(recipe: Recipe, paths: flags.Paths, script: str, *, start_ray: bool = False) -> int:
    """Check everything, write the run folder and run the script to the job's end; its exit status.

    Raises:
        LaunchError: something is missing, or Ray does not start.
    """
    slime = flags.cluster(recipe)
    found = checks.problems(recipe)
    no_ray = checks.ray_problem(slime)
    if no_ray and not (start_ray and not found):
        found.append(no_ray)
    if not no_ray and (running := checks.job_problem(slime, paths.recipe)):
        found.append(running)
    if found:
        raise LaunchError("the job cannot start:\n" + "\n".join(f"- {problem}" for problem in found))
    with RunFolder.create(paths.out, recipe.dump()).lock():
        paths.script.write_text(script, encoding="utf-8")
        start = job.RayCommands.of(slime).head
        if no_ray and subprocess.run(shlex.split(start)).returncode:
            raise LaunchError(f"Ray did not start, see above: {start}")
        return subprocess.run(["bash", str(paths.script)]).returncode


if __name__ == "__main__":
    sys.exit(main())
