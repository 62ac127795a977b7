"""Tests that an exported checkpoint loads by itself and that its card agrees with the run folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agentic.memagent.rollout import SPEC
from benchmarks.harness.models import weights_digest
from core.config import LoRASection
from core.engine import weights
from core.engine.engine import Engine
from core.engine.lora import add_adapters
from core.runs import inputs
from core.runs.evaluation import EvalResult
from core.runs.inputs import hash_inputs
from core.runs.run_folder import RunFolder, list_checkpoints
from core.train import checkpoint
from core.types import Sampling
from scripts.export_checkpoint import main


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return a run of two seeds with checkpoints at steps 5 and 10, and an evaluation."""
    base = tmp_path_factory.mktemp("run")
    folder = RunFolder.create(base / "run", SPEC.load("tiny", [f"model.path={model}"]).dump())
    loaded = weights.load(model, device="cpu")
    for seed in (0, 1):
        for step in (5, 10):
            with torch.no_grad():
                loaded.model.norm.weight.fill_(1 + seed + step / 100)
            checkpoint.save(folder.checkpoints_path(seed), step, loaded, model, {"trainer": {}})
        scores = {"official": [1.0, 1.0, 0.0, 1.0], "strict": [1.0, 0.0, 0.0, 1.0]}
        notes = {"published_as": "RL-MemAgent-14B"}
        result = EvalResult("trained", "niah", 7168, seed, 4, scores, [75] * 4, [7160] * 4, 2.0, notes=notes)
        folder.save_evaluation(result)
    published = {"name": "RL-MemAgent-14B", "data": "niah", "length": 7168, "score": 0.98, "source": "Table 3"}
    folder.save_published([published], ["a departure of the evaluation"])
    return folder


def front_matter(card: str) -> dict[str, object]:
    _, front, _ = card.split("---\n", 2)
    return yaml.safe_load(front)


def norm_of(folder: Path) -> float:
    return weights.load(folder, device="cpu").model.norm.weight[0].item()


def test_the_newest_checkpoint_loads_in_transformers_and_in_our_engine(run, tmp_path, capsys):
    out = tmp_path / "memagent-tiny"
    assert main([str(run.path), "--out", str(out), "--license", "apache-2.0", "--dry-run"]) == 0
    card = capsys.readouterr().out.partition("\n")[2]
    assert not out.exists()
    assert main([str(run.path), "--out", str(out), "--license", "apache-2.0"]) == 0
    assert (out / "README.md").read_text() == card
    assert f"hf upload ORGANISATION/memagent-tiny {out}" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "recipe.yaml", "config.json", "generation_config.json", "model.safetensors"} <= names
    assert not names & {checkpoint.STATE, ".memagent-tiny.partial"}
    assert norm_of(out) == pytest.approx(1.10)

    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template
    assert GenerationConfig.from_pretrained(out).eos_token_id in (tokenizer.eos_token_id, [tokenizer.eos_token_id])
    messages = [{"role": "user", "content": "The grass is green."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    engine = Engine.from_pretrained(str(out), device="cpu", max_model_len=128, kv_tokens=128)
    request = engine.submit(prompt, Sampling(temperature=0.0, max_new_tokens=1))
    while engine.has_work():
        engine.step()
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(out).eval()(torch.tensor([prompt])).logits[0, -1]
    assert request.completion is not None
    assert request.completion.token_ids == (logits.argmax().item(),)
    assert request.completion.logprobs[0] == pytest.approx(torch.log_softmax(logits, 0).max().item(), abs=1e-5)


def test_the_card_is_filled_from_the_run_folder(run, tmp_path):
    out = tmp_path / "name"
    options = ["--license", "apache-2.0", "--base-model", "Org/Base", "--seed", "1", "--step", "5"]
    assert main([str(run.path), "--out", str(out), *options]) == 0
    assert norm_of(out) == pytest.approx(2.05)
    card = (out / "README.md").read_text()
    front = front_matter(card)
    assert (front["license"], front["base_model"]) == ("apache-2.0", "Org/Base")
    assert "memagent" in front["tags"]
    assert "These are the weights of seed 1 after 5 steps." in card
    assert "preset `tiny` (follows: paper)" in card
    assert f"- {run.config['departures'][0]}\n" in card
    assert card.count("- a departure of the evaluation\n") == 1
    assert "### niah · official score" in card
    assert "| trained | 75.0 (" in card
    assert "| RL-MemAgent-14B | niah | 7K | official | 98.0 | – | 75.0 (" in card
    assert f"`{run.versions['git']}`" in card
    assert "bash agentic/memagent/run.sh --preset name/recipe.yaml\n" in card
    assert "bash agentic/memagent/evaluate.sh --model name --preset name/recipe.yaml --serve sglang\n" in card
    again = SPEC.load(str(out / "recipe.yaml")).dump()
    assert again == {**run.config, "model": {**run.config["model"], "path": "Org/Base"}}
    assert "experiment:" in (out / "recipe.yaml").read_text()
    assert '- `--set model.path="Org/Base"` (the preset has "runs/data/memagent-tiny/model")' in card


def test_weights_may_come_from_a_converted_folder_without_generation_config(run, tmp_path):
    source = list_checkpoints(run.checkpoints_path(0))[0]
    converted = tmp_path / "iter_0000005"
    weights.save(weights.load(source, device="cpu"), converted, source)
    (converted / "generation_config.json").unlink(missing_ok=True)
    options = ["--license", "mit", "--checkpoint", str(converted)]
    assert main([str(run.path), "--out", str(tmp_path / "out"), *options]) == 0
    assert "the weights of `iter_0000005`" in (tmp_path / "out/README.md").read_text()
    ends = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert ends == [AutoTokenizer.from_pretrained(converted).eos_token_id]


def test_what_cannot_be_exported_is_named(run, tmp_path, capsys):
    source = list_checkpoints(run.checkpoints_path(0))[0]
    converted, there, out = tmp_path / "converted", tmp_path / "there", tmp_path / "out"
    weights.save(weights.load(source, device="cpu"), converted, source)
    (converted / "chat_template.jinja").unlink()
    there.mkdir()
    for words, says in (
        (["--out", str(there)], f"{there}: exists already"),
        (["--out", str(out), "--step", "7"], "no checkpoint of step 7; there are: 5, 10"),
        (["--out", str(out), "--checkpoint", str(converted)], "has no chat template"),
        (["--out", str(out), "--checkpoint", str(converted), "--step", "5"], "give one of them"),
    ):
        assert main([str(run.path), "--license", "mit", *words]) == 1
        assert says in capsys.readouterr().err
    untrained = RunFolder.create(tmp_path / "run", run.config)
    untrained.seed_path(0).mkdir(parents=True)
    for words, says in (([], "no checkpoint; train first"), (["--seed", "7"], "no seed 7; there are: 0")):
        assert main([str(untrained.path), "--out", str(out), "--license", "mit", *words]) == 1
        assert says in capsys.readouterr().err
    assert not out.exists()


SETTINGS = ("optimizer.lr=0.001", "rollout.group_size=4", "algorithm.clip_ratio_high=0.5")


def start_run(tmp_path: Path, start: Path, model: Path, *settings: str) -> RunFolder:
    """Return a run of the model `start` with data of this machine, and a checkpoint."""
    data = tmp_path / "my data.jsonl"
    data.write_text("one")
    where = [f"model.path={start}", f"data.train={data}", f"data.eval={data}"]
    run = RunFolder.create(tmp_path / "run", SPEC.load("tiny", [*where, *SETTINGS, *settings]).dump())
    loaded = weights.load(model, device="cpu")
    add_adapters(loaded, SPEC.load("tiny", [*where, *settings]).model.lora)
    checkpoint.save(run.checkpoints_path(0), 1, loaded, start, {"trainer": {}})
    run.check_inputs(hash_inputs({"data.train": data}, {"model": start}))
    return run


def export(run: RunFolder, out: Path, *options: str) -> str:
    assert main([str(run.path), "--out", str(out), "--license", "mit", *options]) == 0
    for path in out.rglob("*"):
        if path.is_file():
            assert str(run.path.parent).encode() not in path.read_bytes(), f"{path.name} tells a path of this machine"
    return (out / "README.md").read_text()


def test_the_card_has_every_setting_the_departures_of_this_run_and_what_it_rests_on(model, tmp_path, capsys):
    start = Path(shutil.copytree(model, tmp_path / "hub/models--Org--Base/snapshots/1a2b"))
    run = start_run(tmp_path, start, model)
    card = export(run, tmp_path / "out")
    assert "note:" not in capsys.readouterr().err
    assert front_matter(card)["base_model"] == "Org/Base"
    for line in (
        "- `--set optimizer.lr=0.001` (the preset has 0.0005)",
        "- `--set rollout.group_size=4` (the preset has 16)",
        "- `--set algorithm.clip_ratio_high=0.5` (the preset has 0.2)",
        '- `--set data.train="my data.jsonl"`',
        "learning rate 0.001; group size 4",
        "- algorithm.clip_ratio_high is 0.5; memagent has 0.2",
    ):
        assert line in card
    assert "group size 16" not in card
    digest = hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()
    assert f"| `{digest}` |" in card
    assert "| data.train | 3 | " in card
    again = SPEC.load(str(tmp_path / "out/recipe.yaml"))
    assert (again.model.path, again.data.train, again.optimizer.lr) == ("Org/Base", "my data.jsonl", 0.001)


def test_the_cards_command_names_the_backend_that_trained(model, tmp_path):
    run = start_run(tmp_path, Path(shutil.copytree(model, tmp_path / "start")), model)
    assert "run.sh --preset here/recipe.yaml\n" in export(run, tmp_path / "here")
    (run.path / "verl/global_step_100").mkdir(parents=True)  # beside seed-0, where verl's trainer records rollouts
    assert "run.sh --preset out/recipe.yaml --backend verl\n" in export(run, tmp_path / "out")


@pytest.mark.parametrize(("step", "other"), [(1, False), (9, True)])
def test_the_card_says_so_where_the_scores_are_those_of_another_checkpoint(model, tmp_path, step, other):
    run = start_run(tmp_path, Path(shutil.copytree(model, tmp_path / "start")), model)
    scored = f"seed-0/checkpoints/step-{step:06d}"
    run.save_evaluation(EvalResult("trained", "niah", 9, 0, 1, {"official": [1.0]}, [1], [9], 1.0, model=scored))
    assert ("They are scores of other weights than these" in export(run, tmp_path / "out")) == other


@pytest.mark.parametrize(
    ("evaluated", "other"), [("model", True), ("checkpoint", False), ("moved", False), ("export", False)]
)
def test_the_card_says_so_where_results_are_of_other_weights(model, tmp_path, evaluated, other):
    run = start_run(tmp_path, Path(shutil.copytree(model, tmp_path / "start")), model)
    source = list_checkpoints(run.checkpoints_path(0))[0]
    trained = weights.load(source, device="cpu")
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1)
    weights.save(trained, source, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "_name_or_path": "/of/this/machine"}))
    export(run, tmp_path / "exported")
    places = {"model": model, "checkpoint": source, "moved": source, "export": tmp_path / "exported"}
    settings = {"weights": weights_digest(str(places[evaluated]))}
    named = "/elsewhere" if evaluated == "moved" else places[evaluated]
    results = RunFolder.create(tmp_path / "results", run.config)
    score = {"official": [1.0]}
    results.save_evaluation(
        EvalResult("agent", "aime24", 0, 0, 1, score, [1], [0], 1.0, model=str(named), settings=settings)
    )
    card = export(run, tmp_path / "out", "--results", str(results.path))
    assert ("of `results`. **They are scores of other weights than these**" in card) == other
    assert ("of the evaluation of these weights." in card) != other


def test_the_card_says_which_hashes_are_not_of_whole_files(model, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "WHOLE_BYTES", 1)
    run = start_run(tmp_path, Path(shutil.copytree(model, tmp_path / "start")), model)
    (line,) = [each for each in export(run, tmp_path / "out").splitlines() if "| model/model.safetensors |" in each]
    assert line.endswith("` of header and ends of tensors |")


def test_a_card_without_a_base_model_and_a_method_says_so(model, tmp_path, capsys):
    run = start_run(tmp_path, Path(shutil.copytree(model, tmp_path / "start")), model)
    run.update_config({**run.config, "method": "of_another_place"})
    card = export(run, tmp_path / "out")
    assert "The preset is not in this repository" in card
    assert "learning rate 0.001; group size 4" in card
    assert "--base-model ID" in capsys.readouterr().err
    assert "started from a model that has no id on the hub" in card
    assert "base_model" not in front_matter(card)


@pytest.mark.parametrize("warm_start", [True, False])
def test_adapters_are_exported_with_the_base_that_they_are_for(model, tmp_path, warm_start):
    own = ("model.lora={rank: 2, alpha: 4}", *(() if warm_start else ("warm_start=null",)))
    run = start_run(tmp_path, Path(shutil.copytree(model, tmp_path / "start")), model, *own)
    card = export(run, tmp_path / "out", "--base-model", "Org/Base")
    config = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (2, None if warm_start else "Org/Base")
    source = list_checkpoints(run.checkpoints_path(0))[0] / "adapter/adapter_model.safetensors"
    assert (tmp_path / "out/adapter/adapter_model.safetensors").read_bytes() == source.read_bytes()
    assert ("warm-started model" if warm_start else "for [Org/Base]") in card


def test_a_policy_that_was_trained_beside_is_exported(model, tmp_path):
    """It lies where an evaluation of the exported folder looks for it, without a path of this machine."""
    run = start_run(tmp_path, Path(shutil.copytree(model, tmp_path / "start")), model)
    critic = weights.load(model, device="cpu")
    add_adapters(critic, LoRASection(rank=2))
    checkpoint.save(run.checkpoints_path(0), 2, critic, tmp_path / "start", {"trainer": {}}, {"critic": critic})
    run.update_config({**run.config, "roles": {"critic": "trained"}})
    export(run, tmp_path / "out", "--base-model", "Org/Base")
    source = list_checkpoints(run.checkpoints_path(0))[-1] / "critic/model.safetensors"
    assert (tmp_path / "out/critic/model.safetensors").read_bytes() == source.read_bytes()


def test_what_the_config_does_not_account_for_is_not_published(run, tmp_path, capsys):
    source = tmp_path / "source"
    shutil.copytree(list_checkpoints(run.checkpoints_path(0))[0], source)
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "more": torch.zeros(1)}, source / "model.safetensors")
    arguments = [str(run.path), "--out", str(tmp_path / "out"), "--license", "mit", "--checkpoint", str(source)]
    assert main(arguments) == 1
    assert "1 tensors have no place in the model of config.json: more" in capsys.readouterr().err
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "use_sliding_window": True}))  # slime may train those
    assert main(arguments) == 0
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
