"""docs/cluster.md, followed word by word: every command in its order, each living on what those before it left.

The words are the document's. Replaced is what a bare machine lacks: Docker, Ray, the hub and slime's converters are
small scripts that leave behind what the real ones would (a model, a checkpoint), and the image's paths are folders of
the test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentic.memagent.world import WORLD
from tests import kit
from tests.contract.test_documents import CLUSTER, read_commands
from tests.unit.backends.slime.test_launch import port

__all__ = ["port"]

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = kit.PROGRAM

RAY = """
import json, pathlib, sys
words = sys.argv[1:]
open({calls!r}, "a").write(json.dumps(words) + "\\n")
if words[:2] == ["job", "submit"]:
    for flag in ("--hf-checkpoint", "--ref-load", "--prompt-data", "--custom-config-path"):
        assert pathlib.Path(words[words.index(flag) + 1]).exists(), flag
    save = pathlib.Path(words[words.index("--save") + 1])
    last = int(words[words.index("--num-rollout") + 1]) - 1
    (save / f"iter_{{last:07d}}").mkdir(parents=True)
    for name in (".metadata", "common.pt"):
        (save / f"iter_{{last:07d}}" / name).touch()
    (save / "latest_checkpointed_iteration.txt").write_text(str(last))
"""
HF = """
import shutil, sys
assert sys.argv[1:4] == ["download", "Qwen/Qwen2.5-7B-Instruct", "--local-dir"]
shutil.copytree({model!r}, sys.argv[4])
"""
TO_DIST = """
import pathlib, sys
value = lambda flag: pathlib.Path(sys.argv[sys.argv.index(flag) + 1])
assert (value("--hf-checkpoint") / "config.json").is_file() and "--num-layers" in sys.argv
value("--save").mkdir(parents=True)
(value("--save") / "latest_checkpointed_iteration.txt").write_text("release")
"""
TO_HF = """
import pathlib, shutil, sys
value = lambda flag: pathlib.Path(sys.argv[sys.argv.index(flag) + 1])
assert (value("--input-dir") / ".metadata").is_file()
shutil.copytree(value("--origin-hf-dir"), value("--output-dir"))
"""


class Image:
    """A machine as the document wants it, in a folder."""

    def __init__(self, folder: Path):
        self.folder, self.data, self.root = folder, folder / "data", folder / "tokentrue"
        self.calls = folder / "ray_calls"
        skip = shutil.ignore_patterns(".*", "__pycache__")
        for package in ("agentic", "benchmarks", "core", "scripts", "docker"):
            shutil.copytree(REPOSITORY / package, self.root / package, ignore=skip)
        model = WORLD.build_model(folder / "hub", seed=0)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32768}))
        self.tool("bin/ray", PYTHON + RAY.format(calls=str(self.calls)))
        self.tool("bin/hf", PYTHON + HF.format(model=str(model)))
        self.tool("bin/docker", '#!/bin/sh\n[ "$1" != build ] || [ -f "$3" ]\n')
        self.tool("bin/python3", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        self.tool("bin/tokentrue", '#!/bin/sh\nexec python3 -m scripts.tokentrue "$@"\n')
        self.tool("slime/tools/convert_hf_to_torch_dist.py", TO_DIST)
        self.tool("slime/tools/convert_torch_dist_to_hf.py", TO_HF)
        self.tool("slime/scripts/models/qwen2.5-7B.sh", f"MODEL_ARGS=(--num-layers {config['num_hidden_layers']})")
        for name in ("slime/train.py", "slime/slime/__init__.py", "megatron/megatron/core/__init__.py"):
            self.tool(name, "")
        (folder / "megatron/megatron/training").mkdir()
        (folder / "published").mkdir()
        for name, count in (("hotpotqa_train_32k", 32768), ("hotpotqa_dev", 128)):
            row = {"prompt": "Who?", "context": "A document.", "reward_model": {"ground_truth": ["a"]}}
            pq.write_table(pa.Table.from_pylist([row] * count), folder / "published" / f"{name}.parquet")

    def tool(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def adapted(self, command: str, dashboard: int) -> list[str]:
        """The document's command, with this folder's places for the image's and the hub's."""
        words = [re.sub(r"^/data\b", str(self.data), word) for word in shlex.split(command)]
        tools = [self.folder / "slime", self.folder / "megatron"]
        if {"to-dist", "to-hf"} & set(words):
            words += ["--slime", str(tools[0]), "--megatron", str(tools[1])]
        elif {"scripts.download_data", "download"} & set(words):
            words += ["--from", str(self.folder / "published")]
        elif {"benchmarks.ruler.evaluate", "ruler"} & set(words):
            # The same server and evaluation with our engine on the stand-in for 7B weights, and little to do.
            words += "--serve embedded --seeds 0 --tasks 2 --variants trained".split()
            words += ["--set", "memagent.max_memory_tokens=4", "--set", "memagent.max_final_tokens=4"]
        elif "agentic/memagent/run.sh" in words:
            here = {"root": tools[0], "megatron": tools[1], "ray.dashboard_port": dashboard}
            here |= {"checkpoint.hf": self.data / "Qwen2.5-7B-Instruct"}
            here |= {"checkpoint.ref_load": self.data / "qwen2.5_7b_dist"}
            words += [word for key, value in here.items() for word in ("--set", f"slime.{key}={value}")]
        return words

    def run(self, words: list[str]) -> str:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(self.folder / "slime")}
        done = subprocess.run(words, cwd=self.root, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.e2e
@pytest.mark.timeout(600)  # a dozen commands, several of which import torch: 30 s, but not on a busy machine
def test_the_document_leads_from_nothing_to_a_folder_for_the_hub(tmp_path: Path, port: int) -> None:
    image = Image(tmp_path)
    for command in read_commands(CLUSTER):
        image.run(image.adapted(command, dashboard=port))
    calls = [json.loads(line) for line in image.calls.read_text().splitlines()]
    assert [call[0] for call in calls] == ["start", "job"]
    card = (image.data / "MemAgent-7B" / "README.md").read_text()
    assert "memagent, preset `seed`" in card
    assert "| trained | 0.0 (" in card
    assert (image.data / "MemAgent-7B" / "tokenizer.json").is_file()
