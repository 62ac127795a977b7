"""Other projects' capture layers on the conversations, each in its own environment, as the published table has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.exactness import command
from tests import kit
from tests.unit.gateway.templates import make_thinking_tokenizer

pytestmark = [pytest.mark.optional, pytest.mark.timeout(600)]

ENVIRONMENTS = Path(__file__).resolve().parents[3] / "runs/exactness"
LAYERS = ("openenv", "trl", "trl-lossless", "agentlightning", "rllm")


def measure(layer: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the command finds of each conversation."""
    make_thinking_tokenizer().save_pretrained(folder / "model")
    out = folder / "results.json"
    words = ["--model", str(folder / "model"), "--layers", layer, "--output", str(out)]
    assert command.main([*words, "--environments", str(ENVIRONMENTS)]) == 0
    [result] = json.loads(out.read_text())
    assert not result["failure"]
    return {each["name"]: each["exactness"] for each in result["conversations"]}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_trains_in_the_engines_contexts(layer: str, tmp_path: Path) -> None:
    base = layer.partition("-")[0]
    kit.require(
        (ENVIRONMENTS / base / "bin/python").exists(),
        f"needs the environment of {base}: bash benchmarks/exactness/setup.sh {base}",
    )
    found = measure(layer, tmp_path)
    assert all(each["unseen"] == 0 for each in found.values())
    # A prompt that the template renders anew differs from what was sampled: TRL masks that answer, others start a row.
    dropped = found["dropped-thoughts"]
    assert (dropped["trained"] < dropped["sampled"]) == (layer == "trl")
    assert layer == "trl" or dropped["rows"] == 5
