"""The launcher of verl with everything of a cluster replaced by something small: no verl, no GPU, a `ray` that writes
down what it was called with. What the jobs of all backends share is tested with slime's (test_launch.py there).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml

from core.backends.checks import REPOSITORY
from core.backends.verl import launch
from core.backends.verl.data import read_row
from core.backends.verl.launch import VerlPaths, as_hydra, render
from core.backends.verl.settings import LOOP
from core.rollout.method import method_spec
from scripts import train
from tests.contract.test_presets import CLUSTER
from tests.unit.backends.slime import test_launch
from tests.unit.backends.slime.test_launch import TASKS, port

__all__ = ["port"]


class Cluster(test_launch.Cluster):
    def run(self, *overrides: str) -> int:
        return launch.main(self.arguments(*(word for override in overrides for word in ("--set", override))))


@pytest.fixture
def cluster(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"max_position_embeddings": 8192}')
    monkeypatch.setattr(launch, "distributions", lambda name: [SimpleNamespace(version=launch.VERSION)])
    monkeypatch.setattr(launch, "find_spec", lambda name: name)
    return Cluster(tmp_path, monkeypatch, {"model.path": tmp_path / "model", "verl.ray.dashboard_port": port})


def test_a_launch_writes_the_run_folder_and_submits_the_job(cluster: Cluster) -> None:
    assert cluster.run() == 0
    (call,) = cluster.ray_calls
    assert call[:3] == ["job", "submit", f"--address=http://127.0.0.1:{cluster.options['verl.ray.dashboard_port']}"]
    variables = json.loads(call[3].removeprefix("--runtime-env-json="))["env_vars"]
    assert variables["PYTHONPATH"] == str(REPOSITORY)
    assert variables["VERL_USE_EXTERNAL_MODULES"] == "core.backends.verl.trainer"
    assert call[4:8] == ["--", "python3", "-m", "verl.trainer.main_ppo"]
    overrides = [f"{key}={value}" for key, value in cluster.options.items()]
    recipe = method_spec("memagent").load("seed", overrides).model_copy(update={"slime": None})
    assert call[8:] == [as_hydra(key, value) for key, value in render(recipe, VerlPaths(cluster.out)).items()]

    held = yaml.safe_load((cluster.out / "agentic_recipe.yaml").read_text())
    assert type(recipe).model_validate(held) == recipe
    (loop,) = yaml.safe_load((cluster.out / "agent_loops.yaml").read_text())
    assert loop == {"name": "tokentrue", "_target_": LOOP}
    assert as_hydra("+agentic_recipe", str(cluster.out / "agentic_recipe.yaml")) in call
    rows = pq.read_table(cluster.out / "data/train.parquet").to_pylist()
    assert [read_row(row, "x") for row in rows] == TASKS
    assert pq.read_table(cluster.out / "data/eval.parquet").num_rows == 2
    assert (cluster.out / "config.yaml").is_file()


@pytest.mark.parametrize(("method", "preset"), CLUSTER)
def test_a_dry_run_of_a_preset_needs_no_verl_and_is_a_shell_script(method: str, preset: str, capsys) -> None:
    words = [method, "--backend", "verl", "--preset", preset, "--out", "/nowhere/x y", "--dry-run"]
    assert train.main(words) == 0
    printed, told = capsys.readouterr()
    subprocess.run(["bash", "-n"], input=printed, text=True, check=True)
    assert "slime: null" in printed  # the job depends on no other backend's section
    assert "fill in: verl 0.9.1 is needed, and here is " in told


def settings_of(*overrides: str, method: str = "memagent", preset: str = "seed") -> dict[str, object]:
    return render(method_spec(method).load(preset, overrides), VerlPaths(Path("/runs/x")))


def test_what_the_recipe_says_is_rendered() -> None:
    found = settings_of(
        *"optimizer.lr_scheduler_type=cosine optimizer.lr_warmup_steps=10 optimizer.cpu_offload=true".split(),
        *"algorithm.num_steps_per_rollout=4 algorithm.kl_loss_coef=0 run.eval_every=0 run.record_every=0".split(),
        *("run.seeds=[7]", "verl.nodes=2", "model.lora={rank: 8, alpha: 16}"),
        "verl.overrides={trainer.device: npu, +data.x: [1, a], +data.y: null}",
    )
    expected = {
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 3,  # batches, not optimizer steps
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.model.lora_rank": 8,
        "actor_rollout_ref.rollout.load_format": "safetensors",
        "data.val_files": "/runs/x/data/train.parquet",
        "data.seed": 7,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.nnodes": 2,
        "trainer.device": "npu",
        "+data.x": (1, "a"),
        "+data.y": None,
    }
    assert {key: found[key] for key in expected} == expected
    assert "trainer.rollout_data_dir" not in found
    assert "actor_rollout_ref.actor.kl_loss_coef" not in found


def test_memagents_paper_warms_up_over_as_many_batches_as_its_released_script() -> None:
    assert settings_of(preset="paper")["actor_rollout_ref.actor.optim.lr_warmup_steps"] == 20


def test_a_pack_takes_the_longest_row_and_is_shared_by_its_gpus() -> None:
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    assert settings_of("model.max_model_len=8192")[key] == 16384
    assert settings_of("model.max_model_len=30001")[key] == 30001
    assert settings_of("model.max_model_len=30001", "verl.ulysses_sequence_parallel_size=2")[key] == 15001


@pytest.mark.parametrize("word", ["null", "True", "nan", "12", "a b", "${oc.env:HOME}", "[x]", 'a"b', "ä", ""])
def test_text_stays_text_for_hydra(word: str) -> None:
    assert as_hydra("a.b", word) == f"a.b={json.dumps(word, ensure_ascii=False)}"
    assert as_hydra("a.b", "/data/x-y_1.z") == "a.b=/data/x-y_1.z"


R = "actor_rollout_ref.rollout"


def override(key: str, value: object) -> tuple[str, str]:
    """A broken override of verl's setting `key`, and that the error names it."""
    return f"verl.overrides={{{key}: {json.dumps(value)}}}", key.lstrip("+")


BROKEN: list[tuple[str, str]] = [
    # Unknown keys.
    ("verl.node=2", "did you mean verl.nodes?"),
    ("verl.rows=container", "verl.rows: unknown key"),
    ("verl.ray.heads=a", "did you mean verl.ray.head?"),
    ("verls.nodes=1", "did you mean verl?"),
    # Wrong types.
    ("verl.nodes=0", "verl.nodes"),
    ("verl.engine=trtllm", "verl.engine"),
    ("verl.trainer_mode=async", "verl.trainer_mode"),
    ("verl.overrides={trainer.device: {a: 1}}", "verl.overrides.trainer.device"),
    ("verl.env={A: [1]}", "verl.env.A"),
    # No path of a setting.
    ("verl.overrides={trainer.critic_warmup: 5}", "verl.overrides.trainer.critic_warmup does not go with"),
    ("verl.overrides={+actor_rollout_ref.rollout.logprobs_mode: raw_logprobs}", "logprobs_mode does not go with"),
    ("verl.overrides={model_engine: megatron}", "verl: overrides.model_engine: write the whole path"),
    ("verl.overrides={~trainer.device: null}", "verl: overrides.~trainer.device"),
    ("verl.overrides={trainer/v1.x: 1}", "verl: overrides.trainer/v1.x"),
    ("verl.overrides={trainer.: 1}", "verl: overrides.trainer."),
    ("verl.overrides={'trainer.device=cpu x.y': 1}", "verl: overrides.trainer.device=cpu x.y"),
    # Every setting that the recipe gives, also where hydra is told to add or to force it.
    *(override(key, 1) for key in settings_of() if not key.startswith("+")),
    override(f"+{R}.n", 2),
    override(f"++{R}.temperature", 0.1),
    # What contradicts the recipe; test_settings.py has the others.
    override("algorithm.use_kl_in_reward", True),
    override(f"{R}.top_p", 0.9),
    # Secrets.
    ("verl.env={HF_TOKEN: sesame}", "env.HF_TOKEN: a recipe holds no secrets"),
    ("verl.overrides={trainer.wandb_api_key: sesame}", "overrides.trainer.wandb_api_key: a recipe holds no secrets"),
    ("verl.overrides={+data.hf_token: sesame}", "verl.env_from"),
    # GPUs that do not add up.
    ("verl.tensor_model_parallel_size=3", "tensor_model_parallel_size is 3, which does not divide 8 GPUs"),
    ("verl.tensor_model_parallel_size=16", "tensor_model_parallel_size is 16"),
    ("verl.ulysses_sequence_parallel_size=5", "ulysses_sequence_parallel_size is 5"),
    ("verl.gpus_per_node=6|verl.tensor_model_parallel_size=4", "does not divide 6 GPUs"),
    ("verl.nodes=2", "--set verl.ray.head=ADDRESS"),
    # What only the embedded backend has, or verl lacks.
    ("data.sampler=curriculum", "on verl set data.sampler=epoch"),
    ("warm_start={}", "on verl set warm_start=null"),
    ("run.keep=best", "on verl set run.keep=last"),
    ("model.lora={load_in_4bit: true}", "on verl set model.lora.load_in_4bit=false"),
    ("run.seeds=[1, 2]", "verl trains one seed per job; set run.seeds=[1]"),
    ("rollout.top_k=20", "rollout.top_k is 20, and vLLM's log-probs"),
    ("roles={judge: 'model:/data/judge'}", "roles.judge=http://HOST:PORT"),
    ("algorithm.dynamic_sampling=true", "algorithm.dynamic_sampling"),
    ("optimizer.lr_scheduler_type=linear", "optimizer.lr_scheduler_type is linear"),
    ("optimizer.lr_scheduler_type=cosine|optimizer.lr_decay_steps=500", "optimizer.lr_decay_steps is 500"),
    ("model.max_model_len=null", "model.max_model_len is null"),
    ("verl.trainer_mode=colocate_async", "set algorithm.tis"),
    # What is missing.
    ("model.path=/nowhere", "model.path: no model at /nowhere"),
    ("model.path=models/x/y", "model.path: models/x/y is relative"),
    ("model.max_model_len=9000", "model.max_model_len: 9000 is above the 8192 positions"),
    ("data.train=nowhere.jsonl", "data.train: no file"),
    ("inference.kv_tokens=9000", "--set inference.kv_tokens: verl does not go by it, but by verl.overrides"),
    ("verl.env_from=[NO_SUCH_VARIABLE]", "verl.env_from: NO_SUCH_VARIABLE is not set here"),
]


@pytest.mark.parametrize(("setting", "named"), BROKEN, ids=[setting for setting, _ in BROKEN])
def test_a_broken_recipe_is_named_before_anything_starts(setting: str, named: str, cluster: Cluster, capsys) -> None:
    assert cluster.run(*setting.split("|")) == 1
    told = capsys.readouterr()
    assert named in told.err
    assert "sesame" not in told.err
    assert not told.out
    assert not cluster.out.exists()
    assert not cluster.ray_calls


def test_another_verl_is_refused(cluster: Cluster, monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch, "distributions", lambda name: [SimpleNamespace(version="0.10.0")])
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    assert cluster.run("verl.engine=sglang") == 1
    told = capsys.readouterr().err
    assert "verl 0.9.1 is needed, and here is 0.10.0; run inside an image that has it, or pip install" in told
    assert "no sglang here" in told


def test_positions_that_are_overridden_and_ids_of_the_hub_are_well(cluster: Cluster) -> None:
    key = "+actor_rollout_ref.model.override_config.max_position_embeddings"
    assert cluster.run("model.max_model_len=9000", f"verl.overrides={{{key}: 9000}}") == 0
    recipe = method_spec("memagent").load("seed", ["model.path=Qwen/Qwen2.5-7B-Instruct"])
    job = launch.make_job(recipe, "verl", cluster.out)
    assert job.folders == {}
    assert list(job.find_local_problems()) == []
