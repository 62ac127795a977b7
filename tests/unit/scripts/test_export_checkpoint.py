"""Tests that an exported checkpoint loads by itself and that its card agrees with the run folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agentic.memagent.rollout import SPEC
from core.engine import weights
from core.engine.engine import Engine
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder
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
        folder.save_evaluation(
            EvalResult("trained", "niah", 7168, seed, 4, scores, [75] * 4, [7160] * 4, 2.0, notes=notes)
        )
    folder.save_published(
        [{"name": "RL-MemAgent-14B", "data": "niah", "length": 7168, "score": 0.98, "source": "Table 3"}],
        ["a departure of the evaluation"],
    )
    return folder


def front_matter(card: str) -> dict[str, object]:
    _, front, _ = card.split("---\n", 2)
    return yaml.safe_load(front)


def norm_of(folder: Path) -> float:
    return weights.load(folder, device="cpu").model.norm.weight[0].item()


def test_the_newest_checkpoint_loads_in_transformers_and_in_our_engine(run, tmp_path, capsys):
    out = tmp_path / "memagent-tiny"
    assert main([str(run.path), "--out", str(out), "--license", "apache-2.0"]) == 0
    assert f"hf upload ORGANISATION/memagent-tiny {out}" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "recipe.yaml", "config.json", "generation_config.json", "model.safetensors"} <= names
    assert not names & {checkpoint.STATE, ".memagent-tiny.partial"}
    assert norm_of(out) == pytest.approx(1.10)

    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template
    assert GenerationConfig.from_pretrained(out).eos_token_id in (tokenizer.eos_token_id, [tokenizer.eos_token_id])
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "The grass is green."}], add_generation_prompt=True, return_dict=False
    )
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
    assert "bash agentic/memagent/run.sh --preset recipe.yaml" in card
    assert SPEC.load(str(out / "recipe.yaml")).dump() == run.config


def test_weights_may_come_from_a_converted_folder_without_generation_config(run, tmp_path):
    source = checkpoint.steps(run.checkpoints_path(0))[0]
    converted = tmp_path / "iter_0000005"
    weights.save(weights.load(source, device="cpu"), converted, source)
    (converted / "generation_config.json").unlink(missing_ok=True)
    options = ["--license", "mit", "--checkpoint", str(converted)]
    assert main([str(run.path), "--out", str(tmp_path / "out"), *options]) == 0
    assert "the weights of `iter_0000005`" in (tmp_path / "out/README.md").read_text()
    ends = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert ends == [AutoTokenizer.from_pretrained(converted).eos_token_id]


@pytest.mark.parametrize("problem", ["out", "step", "template", "torn", "run"])
def test_what_cannot_be_exported_is_named(run, tmp_path, capsys, problem):
    arguments = [str(run.path), "--out", str(tmp_path / "out"), "--license", "mit"]
    source = checkpoint.steps(run.checkpoints_path(0))[0]
    converted = tmp_path / "converted"
    weights.save(weights.load(source, device="cpu"), converted, source)
    expected = {
        "out": f"{tmp_path / 'out'}: exists already",
        "step": "no checkpoint of step 7; there are: 5, 10",
        "template": "has no chat template",
        "torn": f"{converted / 'model.safetensors'}: cannot be read",
        "run": f"{tmp_path} is not a run folder",
    }[problem]
    if problem == "out":
        (tmp_path / "out").mkdir()
    elif problem == "step":
        arguments += ["--step", "7"]
    elif problem == "run":
        arguments[0] = str(tmp_path)
    else:
        arguments += ["--checkpoint", str(converted)]
        if problem == "template":
            (converted / "chat_template.jinja").unlink()
        else:
            content = (converted / "model.safetensors").read_bytes()
            (converted / "model.safetensors").write_bytes(content[:-8])
    assert main(arguments) == 1
    assert expected in capsys.readouterr().err
    assert problem == "out" or not (tmp_path / "out").exists()


def test_a_run_without_checkpoints_is_told_to_train(run, tmp_path, capsys):
    untrained = RunFolder.create(tmp_path / "run", run.config)
    untrained.seed_path(0).mkdir(parents=True)
    assert main([str(untrained.path), "--out", str(tmp_path / "out"), "--license", "mit"]) == 1
    assert "no checkpoint; train first" in capsys.readouterr().err
    assert main([str(untrained.path), "--out", str(tmp_path / "out"), "--license", "mit", "--seed", "7"]) == 1
    assert "no seed 7; there are: 0" in capsys.readouterr().err
