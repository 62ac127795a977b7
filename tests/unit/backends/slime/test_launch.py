"""The launcher with everything of a cluster replaced by something small: a folder with slime's files, a `ray` that
writes down what it was called with, a server in the place of Ray's and a role's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from agentic.memagent.rollout import SPEC, MemAgent
from core.backends.checks import REPOSITORY
from core.backends.records import convert
from core.backends.slime import flags, launch
from core.backends.slime.samples import read_task
from core.data import write_jsonl
from core.rollout.method import find_package
from core.runs.inputs import ORIGIN
from core.types import Task
from scripts import new
from tests import kit
from tests.unit.backends.slime.standin import Sample

TASKS = [Task(f"t{i}", f"Question {i}?", (f"a{i}", "b"), f"Dokument {i} «ä».", {"num_docs": i}) for i in range(5)]


JOBS: list[dict[str, str | None]] = []
"""What Ray lists."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that answers as Ray's and a role's would."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(JOBS, status=503 if request.path.startswith("/ill") else 200)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    with kit.serve_app(app) as url:
        yield int(url.rpartition(":")[2])


class Cluster:
    """Data, programs and `options` that make MemAgent's preset `seed` launchable in `folder`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]):
        self.folder, self.out = folder, folder / "a run"
        data = {"data.train": folder / "train.jsonl", "data.eval": folder / "dev.jsonl", "run.eval_tasks": 2}
        self.options = {**options, **data}
        for name in ("train", "dev"):
            write_jsonl(folder / f"{name}.jsonl", TASKS)
        note = f"import json, sys; open({str(folder / 'ray_calls')!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')"
        (folder / "bin").mkdir()
        (folder / "bin/ray").write_text(f"{kit.PROGRAM}{note}\n")
        (folder / "bin/python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        for name in ("ray", "python3"):
            (folder / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("PYTHONPATH", raising=False)

    def arguments(self, *more: str, **changed: object) -> list[str]:
        options = {**self.options, **changed}
        overrides = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
        return ["memagent", "--preset", "seed", "--out", str(self.out), *overrides, *more]

    @property
    def ray_calls(self) -> list[list[str]]:
        path = self.folder / "ray_calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    root = tmp_path / "slime root"
    for path in ("slime root/scripts/models", "megatron/megatron/training", "hf", "dist"):
        (tmp_path / path).mkdir(parents=True)
    (root / "train.py").touch()
    (root / "scripts/models/qwen2.5-7B.sh").write_text("MODEL_ARGS=(\n   --num-layers 28\n)")
    (tmp_path / "hf/config.json").write_text('{"num_hidden_layers": 28}')
    (tmp_path / "dist/latest_checkpointed_iteration.txt").touch()
    options: dict[str, object] = {
        "slime.root": root,
        "slime.megatron": tmp_path / "megatron",
        "slime.checkpoint.hf": tmp_path / "hf",
        "slime.checkpoint.ref_load": tmp_path / "dist",
        "slime.ray.dashboard_port": port,
    }
    return Cluster(tmp_path, monkeypatch, options)


def test_a_launch_writes_the_run_folder_and_submits_the_job(cluster: Cluster) -> None:
    assert launch.main(cluster.arguments()) == 0
    (call,) = cluster.ray_calls
    assert call[:2] == ["job", "submit"]
    assert call[2] == f"--address=http://127.0.0.1:{cluster.options['slime.ray.dashboard_port']}"
    environment = json.loads(call[3].removeprefix("--runtime-env-json="))["env_vars"]
    paths = [cluster.folder / "megatron", REPOSITORY, cluster.folder / "slime root"]
    assert environment["PYTHONPATH"].split(":") == [*map(str, paths)]
    assert call[4:9] == ["--", "python3", str(cluster.folder / "slime root/train.py"), "--num-layers", "28"]
    overrides = [f"{key}={value}" for key, value in cluster.options.items()]
    recipe = SPEC.load("seed", overrides)
    groups = flags.groups(recipe, flags.Paths(cluster.out))
    assert call[9:] == [word for words in groups.values() for word in words]

    held = yaml.safe_load((cluster.out / "agentic_recipe.yaml").read_text())
    assert held == {"agentic_recipe": recipe.dump()}
    assert type(recipe).model_validate(held["agentic_recipe"]) == recipe
    lines = [json.loads(line) for line in (cluster.out / "data/train.jsonl").read_text().splitlines()]
    assert (lines[1]["prompt"], lines[1]["label"]) == ([{"role": "user", "content": "Question 1?"}], "a1")
    assert [read_task(Sample(**line), "train.jsonl") for line in lines] == TASKS
    assert len((cluster.out / "data/eval.jsonl").read_text().splitlines()) == 2
    assert (cluster.out / "config.yaml").is_file()


def test_the_jobs_processes_can_import_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert new.main([str(tmp_path / "own_for_slime")]) == 0
    recipe = SPEC.load("seed").model_copy(update={"method": find_package(str(tmp_path / "own_for_slime"))})
    assert str(tmp_path) in launch.make_job(recipe, tmp_path).environment["PYTHONPATH"].split(":")


def test_the_jobs_processes_can_import_what_is_on_pythonpath_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"rewards{os.pathsep}{os.pathsep}/mine")
    paths = ["/root/Megatron-LM", str(REPOSITORY), "/root/slime", str(Path("rewards").absolute()), "/mine"]
    job = launch.make_job(SPEC.load("seed"), Path("run"))
    assert job.environment["PYTHONPATH"].split(":") == paths


def test_a_secret_is_named_in_the_recipe_reaches_the_job_and_is_written_nowhere(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = cluster.arguments("--set", "slime.env_from=[HF_TOKEN]")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert launch.main(named) == 1
    assert "slime.env_from: HF_TOKEN is not set here" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "hf_sesame'$\"7261")
    assert launch.main(named) == 0
    (call,) = cluster.ray_calls
    variables = json.loads(call[3].removeprefix("--runtime-env-json="))["env_vars"]
    assert variables["HF_TOKEN"] == "hf_sesame'$\"7261"
    assert "PYTHONPATH" in variables
    for path in cluster.out.rglob("*"):
        assert not path.is_file() or b"sesame" not in path.read_bytes(), path


@pytest.mark.parametrize(
    "setting",
    ["slime.env={HF_TOKEN: sesame}", "slime.env={AWS_SECRET_ACCESS_KEY: sesame}", "slime.flags={--wandb-key: sesame}"],
)
def test_a_recipe_that_holds_a_secret_is_refused_without_telling_it(
    setting: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch.main(cluster.arguments("--set", setting)) == 1
    told = capsys.readouterr().err
    assert "slime.env_from" in told
    assert "sesame" not in told
    harmless = "slime.env={TOKENIZERS_PARALLELISM: 'false', NCCL_NVLS_ENABLE: '0'}"
    assert launch.main(cluster.arguments("--dry-run", "--set", harmless)) == 0


def test_the_same_command_goes_on_and_another_recipe_is_refused(cluster: Cluster, capsys) -> None:
    assert launch.main(cluster.arguments()) == launch.main(cluster.arguments()) == 0
    assert cluster.ray_calls[0] == cluster.ray_calls[1]
    assert launch.main(cluster.arguments("--set", "optimizer.lr=1")) == 1
    assert "belongs to another recipe" in capsys.readouterr().err
    (cluster.out / "versions.json").write_text("{")
    assert launch.main(cluster.arguments()) == 1
    assert "versions.json is not valid JSON" in capsys.readouterr().err
    assert len(cluster.ray_calls) == 2


def test_a_dry_run_prints_what_would_run_and_writes_nothing(cluster: Cluster, capsys) -> None:
    assert launch.main(cluster.arguments("--dry-run")) == 0
    printed = capsys.readouterr().out
    assert not cluster.out.exists()
    assert not re.search("pkill|killall", printed)
    assert launch.main(cluster.arguments()) == 0
    assert (cluster.out / "job.sh").read_text() == printed


def test_a_role_that_nobody_plays_is_told(cluster: Cluster, model: Path, capsys, monkeypatch) -> None:
    """Otherwise the nodes find out, when the cluster has loaded everything."""
    shutil.copytree(model, cluster.folder / "hf", dirs_exist_ok=True)
    assert launch.main(cluster.arguments("--dry-run")) == 0
    assert "roles." not in capsys.readouterr().err
    monkeypatch.setattr(MemAgent, "needs", ("reader",))
    assert launch.main(cluster.arguments("--dry-run")) == 0
    assert "fill in: roles.reader is missing, and the method asks it" in capsys.readouterr().err
    assert launch.main(cluster.arguments()) == 1
    assert "- roles.reader is missing" in capsys.readouterr().err
    assert launch.main(cluster.arguments(**{"roles.reader": "http://127.0.0.1:9"})) == 1
    assert "roles.reader is missing" not in capsys.readouterr().err


def test_a_dry_run_shows_further_models_and_nodes(capsys) -> None:
    judge = "slime.sglang.models={judge: {path: /data/judge, gpus: 4}}"
    more = ["--set", judge, "--set", "slime.rollout_gpus=12", "--set", "slime.roles={judge: judge}"]
    assert launch.main(["memagent", "--preset", "seed", "--out", "/nowhere/x", "--dry-run", *more]) == 0
    printed, warned = capsys.readouterr()
    assert "fill in: slime.ray.head is 127.0.0.1, which other nodes cannot reach; --set slime.ray.head=" in warned
    assert "cat >/nowhere/x/servers.yaml <<'YAML'\nsglang:\n- name: policy" in printed
    assert "--sglang-config /nowhere/x/servers.yaml" in printed
    assert "on each of the 1 other nodes: ray start --address=127.0.0.1:6379" in printed


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("slime.root", "/nowhere", "slime.root: no slime at /nowhere"),
        ("slime.model", "qwen2.5-7b", "did you mean qwen2.5-7B?"),
        ("slime.megatron", "/nowhere", "slime.megatron: no Megatron-LM at /nowhere"),
        ("slime.checkpoint.hf", "/nowhere", "hf download Qwen/Qwen2.5-7B-Instruct --local-dir /nowhere"),
        ("slime.checkpoint.ref_load", "/nowhere", "tokentrue convert to-dist --hf"),
        ("slime.checkpoint.save", "models/x", "slime.checkpoint.save: models/x is relative"),
        ("data.train", "nowhere.jsonl", "data.train: no file"),
        ("slime.nodes", "2", "--set slime.ray.head=ADDRESS"),
        ("slime.services.search", "http://127.0.0.1:1/health", "slime.services.search: http://127.0.0.1:1/health does"),
        ("slime.services.search", "http://127.0.0.1:1/up", "another: --set slime.services.search=http://HOST:PORT/up"),
        ("roles.judge", "http://127.0.0.1:1", "or name another: --set roles.judge=http://HOST:PORT\n"),
        ("roles.judge", "vllm+http://127.0.0.1:1", "or name another: --set roles.judge=vllm+http://HOST:PORT\n"),
    ],
)
def test_what_is_missing_is_named_with_its_fix(cluster: Cluster, capsys, key: str, value: str, named: str) -> None:
    assert launch.main(cluster.arguments("--set", f"{key}={value}")) == 1
    assert named in capsys.readouterr().err
    assert not cluster.out.exists()
    assert not cluster.ray_calls


def test_a_checkpoint_of_other_weights_is_not_taken_for_the_models(cluster: Cluster, tmp_path: Path, capsys) -> None:
    (tmp_path / "dist" / ORIGIN).write_text("{}")
    assert launch.main(cluster.arguments()) == 0, "the model has no weights here, so nobody knows"
    cluster.out = tmp_path / "other"
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"weights")
    assert launch.main(cluster.arguments()) == 1
    assert "was made from other weights than those of" in capsys.readouterr().err


def test_a_new_run_does_not_go_on_from_the_checkpoints_of_another(cluster: Cluster, tmp_path: Path, capsys) -> None:
    """`--load` is the folder of `--save`, and Megatron goes on from whatever it finds there."""
    save = {"slime.checkpoint.save": tmp_path / "saved"}
    assert launch.main(cluster.arguments(**save)) == 0
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/latest_checkpointed_iteration.txt").write_text("9")
    assert launch.main(cluster.arguments(**save)) == 0, "its own"
    cluster.out = tmp_path / "other"
    assert launch.main(cluster.arguments(**save)) == 1
    assert f"{tmp_path / 'saved'} holds another run, from which this one would go on" in capsys.readouterr().err


def test_data_lie_where_the_command_is_given(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were looked for in this repository, though a method of one's own lies in another folder."""
    monkeypatch.chdir(cluster.folder)
    names = {"data.train": "train.jsonl", "data.eval": "./dev.jsonl"}
    assert launch.main(cluster.arguments(**names)) == 0
    for name in ("train", "eval"):
        assert (cluster.out / f"data/{name}.jsonl").read_text()


def test_data_that_no_evaluation_reads_are_not_asked_for(cluster: Cluster) -> None:
    assert launch.main(cluster.arguments("--set", "data.eval=nowhere.jsonl", "--set", "run.eval_every=0")) == 0
    assert not (cluster.out / "data/eval.jsonl").exists()


def test_a_service_that_answers_is_well_and_one_that_answers_503_is_not(cluster: Cluster, port: int, capsys) -> None:
    url = f"http://127.0.0.1:{port}"
    assert launch.main(cluster.arguments("--set", f"roles.judge={url}", "--set", f"slime.services.s={url}/x")) == 0
    cluster.out = cluster.folder / "other"
    assert launch.main(cluster.arguments("--set", f"slime.services.s={url}/ill")) == 1
    assert "503" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("preset", "override", "instead"),
    [
        ("seed", "model.path=Qwen/Qwen2.5-1.5B-Instruct", "slime.checkpoint.hf=/data/Qwen2.5-1.5B-Instruct"),
        ("seed", "run.record_every=10", "slime.flags.--save-debug-rollout-data=/data/dump_{rollout_id}.pt"),
        ("seed", "run.steps=10", "slime.num_epoch=null"),
        ("seed", "inference.max_num_seqs=8", "slime.flags.--sglang-max-running-requests=8"),
    ],
)
def test_a_setting_that_slime_does_not_go_by_is_refused_with_the_one_that_it_does(
    preset: str, override: str, instead: str, tmp_path: Path, capsys
) -> None:
    def dry_run(*overrides: str) -> int:
        words = [word for override in overrides for word in ("--set", override)]
        return launch.main(["agentflow", "--preset", preset, "--out", str(tmp_path / "run"), "--dry-run", *words])

    key, other = override.partition("=")[0], instead.partition("=")[0]
    assert dry_run(override) == 1
    assert f"--set {key}: slime does not go by it, but by {other}; set that" in capsys.readouterr().err
    assert dry_run(override, instead) == 0


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--normalize-advantages=true", "--normalize-advantages is True, must be False: advantages are normalised"),
        ("--rollout-top-p=0.9", "--rollout-top-p is 0.9, must be 1.0"),
        ("--partial-rollout=true", ""),
    ],
)
def test_a_flag_that_the_hooks_would_refuse_is_refused_by_the_dry_run(flag: str, says: str, capsys) -> None:
    refused = launch.main(["memagent", "--preset", "seed", "--dry-run", "--set", f"slime.flags.{flag}"])
    assert (refused, says in capsys.readouterr().err) == (bool(says), True)


@pytest.mark.parametrize("key", launch.SERVING)
def test_what_a_refused_key_of_the_engine_is_replaced_by_is_a_flag_of_each_framework(key: str, capsys) -> None:
    for framework, engine in (("slime", "sglang"), ("vime", "vllm")):
        words = ["memagent", "--preset", "seed", "--backend", framework, "--dry-run", "--set", f"inference.{key}=8"]
        assert launch.main(words) == 1
        instead = f"slime.flags.--{engine}-{launch.SERVING[key][engine]}"
        assert f"but by {instead}; set that" in capsys.readouterr().err
        assert launch.main([*words, "--set", f"{instead}=8"]) == 0


def test_without_ray_the_command_is_told_and_run_only_when_asked(cluster: Cluster, capsys) -> None:
    no_ray = ("--set", "slime.ray.dashboard_port=1")
    assert launch.main(cluster.arguments(*no_ray)) == 1
    start = "ray start --head --node-ip-address=127.0.0.1 --port=6379 --num-gpus=8 --disable-usage-stats "
    assert f"on the head node: {start}" in capsys.readouterr().err
    assert not cluster.ray_calls
    assert launch.main(cluster.arguments("--start-ray", *no_ray)) == 0
    assert [call[0] for call in cluster.ray_calls] == ["start", "job"]


def test_no_second_job_trains_in_a_folder_where_one_does(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """As after Ctrl-C, which ends the launcher and not its job."""
    trains = f"python3 train.py --custom-config-path '{cluster.out / 'agentic_recipe.yaml'}'"
    job = {"submission_id": "raysubmit_1", "job_id": None, "status": "RUNNING", "entrypoint": trains}
    ended, other = {**job, "status": "STOPPED"}, {**job, "entrypoint": trains.replace(" '", " '/data")}
    driver = {**job, "submission_id": None, "job_id": "01000000", "entrypoint": None}
    monkeypatch.setattr(sys.modules[__name__], "JOBS", [ended, other, driver])
    assert launch.main(cluster.arguments()) == 0
    monkeypatch.setattr(sys.modules[__name__], "JOBS", [ended, other, driver, job])
    assert launch.main(cluster.arguments()) == 1
    assert "the Ray job raysubmit_1 trains in" in (error := capsys.readouterr().err)
    assert "ray job stop --address=http://127.0.0.1:" in error
    assert len(cluster.ray_calls) == 1


def test_a_ray_that_does_not_start_is_told(cluster: Cluster, capsys) -> None:
    (cluster.folder / "bin/ray").write_text("#!/bin/sh\nexit 1\n")
    assert launch.main(cluster.arguments("--start-ray", "--set", "slime.ray.dashboard_port=1")) == 1
    assert "Ray did not start, see above: ray start --head" in capsys.readouterr().err


def test_ray_is_not_started_for_a_job_that_cannot_run(cluster: Cluster) -> None:
    more = ["--start-ray", "--set", "slime.ray.dashboard_port=1", "--set", "data.train=nowhere.jsonl"]
    assert launch.main(cluster.arguments(*more)) == 1
    assert not cluster.ray_calls


def test_a_broken_data_set_stops_the_script_before_the_job(cluster: Cluster, capfd) -> None:
    (cluster.folder / "train.jsonl").write_text('{"question": 1')
    assert launch.main(cluster.arguments()) == 1
    assert "broken JSON" in capfd.readouterr().err
    assert not cluster.ray_calls


def test_an_evaluation_takes_each_question_once(tmp_path: Path) -> None:
    tasks = [replace(TASKS[0], task_id=f"{n}") for n in range(3)]
    write_jsonl(tmp_path / "own.jsonl", [*tasks, *TASKS[1:]])
    assert convert("slime", tmp_path / "own.jsonl", tmp_path / "eval.jsonl", limit=2) == 2
    lines = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    assert [line["metadata"]["question"] for line in lines] == [task.question for task in TASKS[:2]]


def test_data_that_is_there_is_not_converted_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "tasks.jsonl", tmp_path / "run" / "train.jsonl"
    write_jsonl(source, TASKS)
    assert convert("slime", source, target) == len(TASKS)
    assert "context" not in capsys.readouterr().err, "who reads it is not known here"
    assert convert("slime", source, target) is None
    assert convert("slime", source, target, limit=1) == 1
    write_jsonl(source, TASKS[:1])
    os.utime(source, ns=(1, 1))
    assert convert("slime", source, target, limit=1) == 1, "another file of that name"
    target.unlink()
    assert convert("slime", source, target, limit=1) == 1
    note = target.with_name("train.jsonl.source")
    note.write_text(note.read_text().replace(" prompts as messages", ""))  # of a version that wrote texts
    assert convert("slime", source, target, limit=1) == 1


def test_a_dry_run_tells_what_is_left_to_fill_in(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["toolorchestra", "--preset", "seed", "--out", "/nowhere/x", "--dry-run"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fill in: ")]
    for part in (
        "slime.checkpoint.hf: no model at /data/models/qwen3_8b",
        "toolorchestra.environment.options.python: TAU2/bin/python is a placeholder",
        "toolorchestra.environment.options.data: TAU2_DATA is a placeholder",
        "slime.model: qwen3-8B was not compared",
        "image: slimerl/slime:latest of docker/Dockerfile has no digest",
        "data.train: no file",
    ):
        assert sum(part in line for line in told) == 1, part
    assert launch.main(cluster.arguments("--dry-run", "--set", "algorithm.clip_ratio_high=0.5")) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("fill in: ")] == [told[-1]]
    assert "image" in told[-1]
    assert any(line.startswith("departure: algorithm.clip_ratio_high is 0.5; slime_agentic has 0.3") for line in told)


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
STRICT = ("--set", "slime.env={}")
"""Leaves out the variable of the preset that lets SGLang go beyond the positions of the config."""


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"num_hidden_layers": 27}, "--num-layers 28, and "),
        ({"num_hidden_layers": 28, "tie_word_embeddings": False}, "differ in whether the head is tied"),
        ({"text_config": {"num_hidden_layers": 2}}, "has num_hidden_layers 2"),
        ({"max_position_embeddings": 4096}, "model.max_model_len: 8192 is above the 4096 positions"),
    ],
)
def test_another_model_than_the_checkpoint_is_told_by_the_dry_run_and_refused_by_the_run(
    config: dict[str, object], named: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster.folder / "hf/config.json").write_text(json.dumps(config))
    assert launch.main(cluster.arguments("--dry-run", *STRICT)) == 0
    assert named in capsys.readouterr().err
    assert launch.main(cluster.arguments(*STRICT)) == 1
    assert named in capsys.readouterr().err
    assert not cluster.ray_calls


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"max_position_embeddings": 4096, "rope_scaling": YARN}, STRICT),
        ({"quantization_config": {"quant_method": "fp8"}, "text_config": None}, ()),  # rollouts in FP8
        ({"num_hidden_layers": 27}, ("--set", "slime.flags={--num-layers: 27}")),
        ({"max_position_embeddings": 4096}, ()),  # the preset has the variable
    ],
)
def test_what_fits_the_checkpoint_starts(
    config: dict[str, object], settings: tuple[str, ...], cluster: Cluster
) -> None:
    (cluster.folder / "hf/config.json").write_text(json.dumps({"num_hidden_layers": 28, **config}))
    assert launch.main(cluster.arguments(*settings)) == 0


def test_a_job_that_goes_on_names_data_that_have_changed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(cluster.arguments()) == 0
    write_jsonl(cluster.folder / "train.jsonl", TASKS[:2])
    assert launch.main(cluster.arguments()) == 1
    assert "data.train: " in capsys.readouterr().err
    assert launch.main(cluster.arguments("--accept-changes", "--set", "health.end_after=5")) == 0
    assert len(cluster.ray_calls) == 2
