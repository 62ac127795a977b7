"""Renders a job of any backend as one shell script, and starts it on a Ray cluster: the dry run prints the script.

Nothing is ever killed, and no Ray cluster is started unless asked. The same command again goes on from the newest
checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from urllib.request import urlopen

from core.backends import checks
from core.backends.checks import PATIENCE_S, REPOSITORY
from core.config import Recipe, RecipeError, import_functions
from core.config.clusters import ClusterSection
from core.data.files import DataError
from core.data.hub_sets import locate
from core.hub import CheckpointError, resolve
from core.options import show_errors
from core.policy.server_process import find_url_problem
from core.rollout.method import check_roles, find_package, method_spec
from core.runs.files import BrokenFileError
from core.runs.inputs import hash_inputs, list_code
from core.runs.run_folder import RunFolder, RunFolderError
from core.text.tokenizer import load_tokenizer
from core.training_options import make_training_parser

PORT = 6379
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_ADD_SECRETS = """
import json, os, sys
environment = json.loads(sys.argv[1])
environment["env_vars"].update((name, os.environ[name]) for name in sys.argv[2:])
print(json.dumps(environment))
""".strip()


class LaunchError(RuntimeError):
    """Says that the job cannot start; the message lists every reason with its fix."""


class JobPaths:
    """Names what the launcher writes into the run folder `out`. Every node must see that folder."""

    def __init__(self, out: Path, suffix: str):
        self.out = out.resolve()
        self.recipe = self.out / "agentic_recipe.yaml"
        """Holds the recipe. The job's command names it, by which Ray's list shows that this run trains."""
        self.train = self.out / "data" / f"train.{suffix}"
        self.eval = self.out / "data" / f"eval.{suffix}"
        self.script = self.out / "job.sh"


@dataclass(frozen=True)
class RayCluster:
    """Describes the Ray cluster of one job: nodes that are alike, of which the first is the head."""

    head: str
    dashboard_port: int
    nodes: int
    gpus_per_node: int

    @property
    def url(self) -> str:
        """Return where the dashboard takes jobs. Whoever reaches it can run code, so it listens on `head` alone."""
        return f"http://{self.head}:{self.dashboard_port}"

    @property
    def start_head(self) -> str:
        """Return the command that starts Ray on the head node, once and by hand."""
        return (
            f"ray start --head --node-ip-address={self.head} --port={PORT} {self._options} "
            f"--dashboard-host={self.head} --dashboard-port={self.dashboard_port}"
        )

    @property
    def _options(self) -> str:
        return f"--num-gpus={self.gpus_per_node} --disable-usage-stats"

    def describe_start(self) -> list[str]:
        """Say on which node which command is run, a line for each kind of node."""
        lines = [f"on the head node: {self.start_head}"]
        if self.nodes > 1:
            join = f"ray start --address={self.head}:{PORT} {self._options}"
            lines.append(f"on each of the {self.nodes - 1} other nodes: {join}")
        return lines

    def find_setup_problems(self, key: str, framework: str) -> Iterator[str]:
        """Name what keeps Ray from being used at all. `key` is the recipe's section of Ray."""
        if shutil.which("ray") is None:
            yield f"no command `ray`. Run inside {framework}'s image, or pip install ray"
        if self.nodes > 1 and self.head in LOOPBACK:
            yield f"{key}.head is {self.head}, which other nodes cannot reach; --set {key}.head=ADDRESS"

    def find_problem(self, key: str, framework: str) -> str | None:
        """Say why no Ray answers, with the commands that start it by the Python of `framework`; None if one does."""
        if error := find_url_problem(f"{self.url}/api/version", PATIENCE_S):
            commands = "\n".join(f"    {line}" for line in self.describe_start())
            return (
                f"no Ray cluster answers at {self.url} ({error}). Start one, with {framework}'s Python:\n"
                f"{commands}\n"
                f"  or give --start-ray, which starts the head; or name a running one: --set {key}.head=HOST"
            )
        return None

    def find_running_job(self, recipe: Path) -> str | None:
        """Name a Ray job that still trains by the file `recipe`; a second one would write the same checkpoints.

        Ctrl-C ends the launcher but not its job, so the lock of the run folder cannot tell.
        """
        with urlopen(f"{self.url}/api/jobs/", timeout=PATIENCE_S) as reply:
            jobs = json.load(reply)
        names = re.compile(rf"(?<![\w.~-]){re.escape(str(recipe))}")  # and not /data, in front of it
        for job in jobs:
            if job["status"] in ("PENDING", "RUNNING") and names.search(job["entrypoint"] or ""):
                name, address = job["submission_id"] or job["job_id"], f"--address={self.url}"
                return (
                    f"the Ray job {name} trains in {recipe.parent} already. Watch it: ray job logs {address} --follow "
                    f"{name}; or end it first: ray job stop {address} {name}"
                )
        return None


def quote_environment(variables: Mapping[str, str], secrets: Sequence[str]) -> str:
    """Write a job's environment as one word of a shell script, the value of `--runtime-env-json`.

    The variables named in `secrets` are taken from the script's own environment, so that no file holds them.
    """
    word = shlex.quote(json.dumps({"env_vars": dict(variables)}))
    return f'"$(python3 -c {shlex.quote(_ADD_SECRETS)} {word} {shlex.join(secrets)})"' if secrets else word


@dataclass(frozen=True)
class Job:
    """Holds what a backend makes of a recipe."""

    recipe: Recipe
    cluster: ClusterSection
    paths: JobPaths
    framework: str
    """Names what trains, whose Python starts Ray."""
    nodes: int
    """Counts the nodes of the Ray cluster."""
    files: Mapping[Path, str]
    """Maps the YAML files of the job to their text."""
    settings: Sequence[str]
    """Lists the lines of the script that set shell variables."""
    command: Sequence[str]
    """Holds the command that Ray runs, in parts, as the shell reads them."""
    environment: Mapping[str, str]
    models: Mapping[str, str]
    """Maps keys to the models that the job reads."""
    folders: Mapping[str, str]
    """Maps keys to folders that every node must see by the same path."""
    find_local_problems: Callable[[], Iterator[str]]
    """Names what is missing on this machine."""
    served: Collection[str] = ()
    """Names the roles that the job serves itself."""
    open_points: Sequence[str] = ()
    """Lists what nothing here can check."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Maps keys that this job does not go by to those that it goes by instead."""

    @property
    def ray(self) -> RayCluster:
        """Return the Ray cluster that the job needs."""
        cluster = self.cluster
        return RayCluster(cluster.ray.head, cluster.ray.dashboard_port, self.nodes, cluster.gpus_per_node)

    @property
    def script(self) -> str:
        """Write the script. It is a plain one, so that it can be laid beside those of the framework."""
        recipe, files, convert = self.recipe, self.files.items(), "python3 -m core.backends.records".split()
        targets = {"data.train": [str(self.paths.train)]}
        targets["data.eval"] = [str(self.paths.eval), "--limit", str(recipe.run.eval_tasks)]
        data = [[*convert, self.cluster.key, path, *targets[key]] for key, path in checks.list_data(recipe).items()]
        environment = quote_environment(self.environment, self.cluster.env_from)
        submit = [f"ray job submit --address={self.ray.url}", f"--runtime-env-json={environment}", *self.command]
        lines = [
            "#!/usr/bin/env bash",
            f"# {recipe.method}, preset {recipe.preset}, on {self.framework}. Ray must be running:",
            *(f"#   {line}" for line in self.ray.describe_start()),
            "set -eo pipefail",
            f"cd {shlex.quote(str(REPOSITORY))}",
            f"mkdir -p {shlex.quote(str(self.paths.out))}",
            *(f"cat >{shlex.quote(str(path))} <<'YAML'\n{text.rstrip()}\nYAML" for path, text in files),
            *map(shlex.join, data),
            "",
            *self.settings,
            "",
            " \\\n  ".join(submit),
            "",
        ]
        return "\n".join(lines)

    def start(self, *, start_ray: bool = False, accept_changes: bool = False) -> int:
        """Check everything, write the run folder, run the script to the job's end and return its exit status.

        Raises:
            LaunchError: something is missing, or Ray does not start.
        """
        recipe, ray, paths, files = self.recipe, self.ray, self.paths, checks.list_data(self.recipe)
        problems = list(self._find_missing())
        problems += checks.find_shared_problems(recipe, self.cluster, self.folders, self.served)
        no_ray = ray.find_problem(f"{self.cluster.key}.ray", self.framework)
        if no_ray and not (start_ray and not problems):
            problems.append(no_ray)
        if not no_ray and (running := ray.find_running_job(paths.recipe)):
            problems.append(running)
        if problems:
            raise LaunchError("the job cannot start:\n" + "\n".join(f"- {problem}" for problem in problems))
        allowed = ("departures", "health")
        folder = RunFolder.create(paths.out, recipe.dump(), may_differ=allowed, complete=recipe.complete)
        with folder.lock():
            data = {key: locate(path, REPOSITORY) for key, path in files.items()}
            models = {key: resolve(model) for key, model in self.models.items()}
            code = list_code(method_spec(recipe.method).presets.parent, recipe)
            folder.check_inputs(hash_inputs(data | code, models), accept=accept_changes)
            paths.script.write_text(self.script, encoding="utf-8")
            if no_ray and subprocess.run(shlex.split(ray.start_head)).returncode:
                raise LaunchError(f"Ray did not start, see above: {ray.start_head}")
            return subprocess.run(["bash", str(paths.script)]).returncode

    def find_open_points(self) -> Iterator[str]:
        """Name what a dry run leaves to fill in, or cannot check. No server is asked."""
        yield from self._find_missing()
        yield from checks.find_missing_data(self.recipe)
        yield from checks.find_placeholders(self.recipe)
        yield from self.open_points

    def _find_missing(self) -> Iterator[str]:
        yield from self.find_local_problems()
        yield from self._find_role_problems()
        yield from self.ray.find_setup_problems(f"{self.cluster.key}.ray", self.framework)

    def _find_role_problems(self) -> Iterator[str]:
        """Name a role that the method asks and nobody plays, where the model's folder and the services are here."""
        if not Path(self.models["model"]).is_dir():
            return
        try:
            method = method_spec(self.recipe.method).build(self.recipe, load_tokenizer(self.models["model"]))
        except Exception:  # this machine may lack what a node has
            return
        try:
            check_roles(method, {*self.recipe.roles, *self.served})
        except RecipeError as error:
            yield str(error)
        finally:
            asyncio.run(method.close())


@show_errors(BrokenFileError, CheckpointError, DataError, OSError, RecipeError, RunFolderError, LaunchError)
def launch(arguments: list[str] | None, backends: Sequence[str], make_job: Callable[[Recipe, str, Path], Job]) -> int:
    """Run `tokentrue train` for these backends. `make_job` takes the recipe, the backend and the run folder."""
    options = make_training_parser(*backends).parse_args(arguments)
    spec = method_spec(options.method)
    recipe = spec.load(options.preset, options.overrides)
    import_functions(recipe)
    job = make_job(recipe, options.backend, options.out or Path("runs") / f"{spec.name}-{recipe.preset}")
    given = {override.partition("=")[0] for override in options.overrides}
    for key in sorted(given & job.unread.keys()):
        if not any(f"{job.unread[key]}.".startswith(f"{other}.") for other in given):
            raise RecipeError(f"--set {key}: {options.backend} does not go by it, but by {job.unread[key]}; set that")
    if not options.dry_run:
        return job.start(start_ray=options.start_ray, accept_changes=options.accept_changes)
    print(job.script, end="")
    for line in recipe.list_departures():
        print(f"departure: {line}", file=sys.stderr)
    for line in job.find_open_points():
        print(f"fill in: {line}", file=sys.stderr)
    return 0


def join_python_path(method: str, before: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """Write PYTHONPATH with this repository, the method, which may lie outside of agentic/, and what is on PYTHONPATH
    here, where the user's functions lie."""
    package = find_package(method)
    own = Path(import_module(f"{package}.rollout").__file__ or "").parents[package.count(".") + 1]
    users = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return ":".join(dict.fromkeys([*before, str(REPOSITORY), str(own), *after, *users]))
