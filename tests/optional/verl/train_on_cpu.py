"""Trains MemAgent's preset tiny by verl's whole V1 trainer on a CPU: Ray, TransferQueue, an FSDP worker, our loop.

    tests/optional/verl/.venv/bin/python tests/optional/verl/train_on_cpu.py OUT [key.path=value ...]

The model and the data are those of `bash agentic/memagent/run.sh`, unless settings name others: `model.path` should be
its `warm_start`. What verl lacks without an accelerator is in cpu_platform.py and engine_replica.py; the engine and the
optimizer work in float32. Ray is started unless RAY_ADDRESS names one, with 16 CPUs and a GPU that need not be there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from core.backends.records import convert  # noqa: E402
from core.backends.verl.launch import (  # noqa: E402
    VerlPaths,
    as_hydra,
    make_job,
    render,
)
from core.rollout.method import method_spec  # noqa: E402

FSDP = "actor_rollout_ref.actor.fsdp_config"
OVERRIDES = {
    "trainer.device": "cpu",
    "actor_rollout_ref.model.use_remove_padding": False,
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.actor.strategy": "fsdp2",
    f"{FSDP}.model_dtype": "fp32",
    f"{FSDP}.dtype": "float32",
    f"{FSDP}.use_torch_compile": False,
    **{f"+{FSDP}.mixed_precision.{name}_dtype": "fp32" for name in ("param", "reduce", "buffer")},
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "reward.num_workers": 1,
    "data.dataloader_num_workers": 0,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
}
if "RAY_ADDRESS" not in os.environ:  # verl reserves more cores than two, and what it takes for a GPU
    ray = "ray_kwargs.ray_init"
    OVERRIDES |= {f"{ray}.num_cpus": 16, f"+{ray}.num_gpus": 1, f"+{ray}.include_dashboard": False}
RECIPE = [
    "warm_start=null",
    "run.seeds=[0]",
    "model.dtype=bfloat16",  # what the recipe must say; OVERRIDES say float32
    "optimizer.lr_scheduler_type=constant",
    "verl.gpus_per_node=1",
    f"verl.overrides={json.dumps(OVERRIDES)}",
]


def train(out: Path, settings: Sequence[str]) -> int:
    recipe = method_spec("memagent").load("tiny", [*RECIPE, *settings])
    paths, job = VerlPaths(out), make_job(recipe, "verl", out)
    paths.out.mkdir(parents=True)
    for path, text in job.files.items():
        path.write_text(text)
    convert("verl", Path(recipe.data.train), paths.train)
    convert("verl", Path(recipe.data.eval), paths.eval, recipe.run.eval_tasks)
    modules = "cpu_platform,engine_replica," + job.environment["VERL_USE_EXTERNAL_MODULES"]
    environment = {
        **os.environ,
        **job.environment,
        "PYTHONPATH": f"{job.environment['PYTHONPATH']}:{HERE}",
        "VERL_USE_EXTERNAL_MODULES": modules,
        "VERL_PLATFORM": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    words = [as_hydra(key, value) for key, value in render(recipe, paths).items()]
    return subprocess.run([sys.executable, "-m", "verl.trainer.main_ppo", *words], env=environment).returncode


if __name__ == "__main__":
    sys.exit(train(Path(sys.argv[1]), sys.argv[2:]))
