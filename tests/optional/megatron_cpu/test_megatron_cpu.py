"""Weights survive Megatron's distributed checkpoint, and slime's converter; setup.sh makes what this needs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.config import OptimizerSection
from core.engine import weights
from core.train.trainer import Trainer
from core.types import Row
from scripts.convert_checkpoints import main as convert
from tests import kit

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("MEGATRON_PYTHON", HERE / ".venv/bin/python"))
SLIME = os.environ.get("SLIME_ROOT")

pytestmark = [
    pytest.mark.optional,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs Megatron: run setup.sh here, or set MEGATRON_PYTHON"),
]


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 after one step of our trainer, as our checkpoint has it."""
    folder = tmp_path_factory.mktemp("model")
    kit.save_model(folder / "start", seed=0, tie_word_embeddings=request.param)
    trainer = Trainer(weights.load(folder / "start", device="cpu"), OptimizerSection(lr=1e-2))
    trainer.grpo_step([Row((1, 2, 3, 4), (1, 1), (-4.5, -4.5), 1.0, 0), Row((5, 6, 7), (1,), (-4.5,), -1.0, 1)])
    weights.save(trainer.model, folder / "trained", folder / "start")
    return folder / "trained"


@pytest.fixture(scope="module")
def trip(trained: Path) -> tuple[Path, dict[str, Any]]:
    """The output folder of round_trip.py, and what it found."""
    out = trained.parent / "out"
    command = [str(PYTHON), str(HERE / "round_trip.py"), str(trained), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout.splitlines()[-1])


def test_weights_come_back_bit_equal_and_logits_agree(trip):
    _, found = trip
    assert found["bit_equal"]
    assert found["tensors"] > 20
    assert found["megatron_logits_differ_by"] < 1e-5
    assert found["returned_logits_differ_by"] == 0.0


@pytest.mark.skipif(SLIME is None, reason=kit.SLIME)
def test_slimes_converter_by_our_script_gives_the_same_weights(trip, trained, capsys):
    out, _ = trip
    packages = next(PYTHON.parent.parent.glob("lib/python3*/site-packages"))
    command = ["to-hf", "--hf", str(trained), "--dist", str(out / "torch_dist"), "--out", str(out / "by_slime")]
    command += ["--slime", str(SLIME), "--megatron", str(packages), "--python", str(PYTHON)]
    assert convert(command) == 0
    (converted,) = (out / "by_slime").iterdir()
    assert converted.name == "iter_0000001"
    before = load_file(trained / "model.safetensors")
    after = {name: value for path in converted.glob("*.safetensors") for name, value in load_file(path).items()}
    assert {name for name in before if name != "lm_head.weight"} <= after.keys()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    weights.load(converted, device="cpu")
    capsys.readouterr()
    assert convert(command) == 0
    assert "nothing to do" in capsys.readouterr().out
