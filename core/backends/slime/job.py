"""Writes a recipe as one shell script, which writes the job's files and submits it; the dry run prints it.

The script is slime's own idiom (scripts/run-*.sh in slime's repository), so that the two can be laid side by side.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from core.backends.slime import flags
from core.backends.slime.framework import FRAMEWORKS, framework_environment
from core.config import Recipe
from core.config.slime import ServerGroup, SlimeSection

REPOSITORY = Path(__file__).resolve().parents[3]

_ADD_SECRETS = """
import json, os, sys
environment = json.loads(sys.argv[1])
environment["env_vars"].update((name, os.environ[name]) for name in sys.argv[2:])
print(json.dumps(environment))
""".strip()


@dataclass(frozen=True)
class RayCommands:
    """Holds the commands that start a Ray cluster for a job, once and by hand."""

    head: str
    worker: str
    workers: int

    @classmethod
    def for_cluster(cls, slime: SlimeSection) -> RayCommands:
        ray, gpus = slime.ray, f"--num-gpus={slime.gpus_per_node} --disable-usage-stats"
        return cls(
            head=f"ray start --head --node-ip-address={ray.head} --port={ray.port} {gpus} "
            f"--dashboard-host={ray.head} --dashboard-port={ray.dashboard_port}",
            worker=f"ray start --address={ray.head}:{ray.port} {gpus}",
            workers=slime.all_nodes - 1,
        )

    def lines(self) -> list[str]:
        lines = [f"on the head node: {self.head}"]
        if self.workers:
            lines.append(f"on each of the {self.workers} other nodes: {self.worker}")
        return lines


def environment(slime: SlimeSection) -> dict[str, str]:
    """Return the environment variables of every process of the job."""
    return {
        "PYTHONPATH": f"{slime.megatron}:{REPOSITORY}:{slime.source}",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "1",
        "PYTHONUNBUFFERED": "1",
        **framework_environment(slime),
    }


def _write_environment(slime: SlimeSection) -> str:
    """Write the job's environment as a word of the script, which takes secret values from its own environment."""
    environ = shlex.quote(json.dumps({"env_vars": environment(slime)}))
    if not slime.env_from:
        return environ
    return f'"$(python3 -c {shlex.quote(_ADD_SECRETS)} {environ} {shlex.join(slime.env_from)})"'


def model_file(slime: SlimeSection) -> Path:
    return Path(slime.source) / "scripts" / "models" / f"{slime.model}.sh"


def script(recipe: Recipe, paths: flags.Paths) -> str:
    """Write the whole script.

    Raises:
        RecipeError: as `flags.groups`.
    """
    groups = {name: words for name, words in flags.groups(recipe, paths).items() if words}
    slime = flags.cluster(recipe)
    train = Path(slime.source) / ("train.py" if slime.colocate else "train_async.py")
    submit = [
        f"ray job submit --address={slime.ray.url}",
        f"--runtime-env-json={_write_environment(slime)}",
        f"-- python3 {shlex.quote(str(train))}",
        '"${MODEL_ARGS[@]}"',
        *(f'"${{{name}_ARGS[@]}}"' for name in groups),
    ]
    lines = [
        "#!/usr/bin/env bash",
        f"# {recipe.method}, preset {recipe.preset}, on {slime.framework}. Ray must be running:",
        *(f"#   {line}" for line in RayCommands.for_cluster(slime).lines()),
        "set -eo pipefail",
        *_files(recipe, paths),
        "",
        f"source {shlex.quote(str(model_file(slime)))}  # MODEL_ARGS",
        *(f"{name}_ARGS=({shlex.join(words)})" for name, words in groups.items()),
        "",
        " \\\n  ".join(submit),
        "",
    ]
    return "\n".join(lines)


def server_config(slime: SlimeSection) -> str | None:
    """Write the YAML of --sglang-config or --vllm-config; None for one model whose engines are all alike."""
    serving = slime.sglang
    if not serving.policy_groups and not serving.models:
        return None
    policy = serving.policy_groups or (ServerGroup(gpus=slime.policy_gpus),)
    models = [_model_entry("policy", slime.checkpoint.hf, policy, update=True)]
    models += [_model_entry(name, model.path, model.groups, update=False) for name, model in serving.models.items()]
    return str(yaml.safe_dump({FRAMEWORKS[slime.framework].engine: models}, sort_keys=False))


def _model_entry(name: str, path: str, groups: tuple[ServerGroup, ...], update: bool) -> dict[str, Any]:
    return {
        "name": name,
        "model_path": path,
        "update_weights": update,
        "server_groups": [
            {
                "worker_type": group.worker,
                "num_gpus": group.gpus,
                **({"num_gpus_per_engine": group.gpus_per_engine} if group.gpus_per_engine else {}),
                **({"overrides": dict(group.overrides)} if group.overrides else {}),
            }
            for group in groups
        ],
    }


def _files(recipe: Recipe, paths: flags.Paths) -> list[str]:
    # Lines of the script that write what the job reads into the run folder.
    files = {paths.recipe: yaml.safe_dump({"agentic_recipe": recipe.dump()}, sort_keys=False, allow_unicode=True)}
    if config := server_config(flags.cluster(recipe)):
        files[paths.servers] = config
    lines = [f"cd {shlex.quote(str(REPOSITORY))}", f"mkdir -p {shlex.quote(str(paths.out))}"]
    for path, text in files.items():
        lines += [f"cat >{shlex.quote(str(path))} <<'YAML'", text.rstrip("\n"), "YAML"]
    data: dict[Path, tuple[str, list[str]]] = {paths.train: (recipe.data.train, [])}
    if recipe.data.eval and recipe.run.eval_every:
        data[paths.eval] = (recipe.data.eval, ["--limit", str(recipe.run.eval_tasks)])
    for target, (source, limit) in data.items():
        lines.append(shlex.join(["python3", "-m", "core.backends.slime.records", source, str(target), *limit]))
    return lines
