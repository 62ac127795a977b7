"""Tests `tokentrue convert` with stand-ins for slime's converters; tests/optional/megatron_cpu runs slime's own."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from scripts.convert_checkpoints import ConversionError, ConverterTools, main, to_hf

# Writes its arguments to the output folder; fails half-way as long as a file `fail` stands beside slime.
CONVERTER = """
import json, os, sys
import numpy
from safetensors.numpy import save_file
from pathlib import Path
arguments = sys.argv[1:]
out = Path(arguments[arguments.index("--output-dir" if "--output-dir" in arguments else "--save") + 1])
out.mkdir()
save_file({"w": numpy.zeros(4, numpy.float16)}, out / "model.safetensors")
(out / "config.json").write_text('{"model_type": "other", "torch_dtype": "float32"}')
if (Path(__file__).parents[2] / "fail").exists():
    sys.exit(3)
(out / "arguments.json").write_text(json.dumps(arguments))
(out / "environment.json").write_text(json.dumps(os.environ["PYTHONPATH"]))
(out / "latest_checkpointed_iteration.txt").write_text("release")
"""

MODEL = """
echo noise
LAYERS=2
MODEL_ARGS=(
  --num-layers $LAYERS # not this
  --normalization "RMSNorm"
  --name "a b"
)
"""


@pytest.fixture
def tools(tmp_path: Path) -> ConverterTools:
    slime, megatron = tmp_path / "slime", tmp_path / "megatron"
    for name in ("convert_hf_to_torch_dist.py", "convert_torch_dist_to_hf.py"):
        (slime / "tools").mkdir(parents=True, exist_ok=True)
        (slime / "tools" / name).write_text(CONVERTER)
    (slime / "scripts/models").mkdir(parents=True)
    (slime / "scripts/models/small.sh").write_text(MODEL)
    (megatron / "megatron/core").mkdir(parents=True)
    (megatron / "megatron/core/__init__.py").touch()
    return ConverterTools(slime, megatron)


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text('{"vocab_size": 96}')
    return tmp_path / "hf"


def save(dist: Path, iteration: int, complete: bool = True) -> None:
    folder = dist / f"iter_{iteration:07d}"
    folder.mkdir(parents=True)
    (folder / "common.pt").touch()
    if complete:
        (folder / ".metadata").touch()


def common(tools: ConverterTools, hf: Path, dist: Path) -> list[str]:
    return ["--hf", str(hf), "--dist", str(dist), "--slime", str(tools.slime), "--megatron", str(tools.megatron)]


def test_the_architecture_comes_from_slimes_script(tools):
    assert tools.model_args("small") == ["--num-layers", "2", "--normalization", "RMSNorm", "--name", "a b"]
    with pytest.raises(ConversionError, match=r"--model smal: no file .* slime knows: small"):
        tools.model_args("smal")


def test_to_dist_converts_once(tools, hf, tmp_path, capsys):
    arguments = ["to-dist", *common(tools, hf, tmp_path / "dist"), "--model", "small"]
    assert main(arguments) == 0
    given = json.loads((tmp_path / "dist/arguments.json").read_text())
    assert given[-4:] == ["--hf-checkpoint", str(hf), "--save", str(tmp_path / ".dist.partial")]
    assert json.loads((tmp_path / "dist/environment.json").read_text()) == f"{tools.megatron}:{tools.slime}"
    capsys.readouterr()
    assert main(arguments) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_the_checkpoint_of_other_weights_is_not_taken_for_the_models(tools, hf, tmp_path, capsys):
    arguments = ["to-dist", *common(tools, hf, tmp_path / "dist"), "--model", "small"]
    save_file({"w": numpy.zeros(4, numpy.float16)}, hf / "model.safetensors")
    assert main(arguments) == 0
    assert main(arguments) == 0
    save_file({"w": numpy.ones(4, numpy.float16)}, hf / "model.safetensors")
    assert main(arguments) == 1
    assert f"was made from other weights than those of {hf}. Give another --dist." in capsys.readouterr().err


def test_to_hf_converts_all_complete_iterations_and_skips_what_is_there(tools, hf, tmp_path):
    dist, out = tmp_path / "dist", tmp_path / "out"
    for iteration in (20, 40):
        save(dist, iteration)
    save(dist, 80, complete=False)
    arguments = ["to-hf", *common(tools, hf, dist), "--out", str(out)]
    assert main(arguments) == 0
    assert sorted(path.name for path in out.iterdir()) == ["converted_from.json", "iter_0000020", "iter_0000040"]
    marks = {path: path.stat().st_ino for path in out.glob("iter_*")}
    save(dist, 60)
    assert main(arguments) == 0
    assert sorted(path.name for path in out.glob("iter_*")) == ["iter_0000020", "iter_0000040", "iter_0000060"]
    assert all(path.stat().st_ino == inode for path, inode in marks.items())
    given = json.loads((out / "iter_0000060/arguments.json").read_text())
    assert given == [
        *("--input-dir", str(dist / "iter_0000060"), "--output-dir", str(out / ".iter_0000060.partial")),
        *("--origin-hf-dir", str(hf), "--vocab-size", "96"),
    ]
    config = json.loads((out / "iter_0000060/config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == ("float16", "float16")  # of what is stored


def test_a_folder_holds_the_checkpoints_of_one_run(tools, hf, tmp_path, capsys):
    for run in ("a", "b"):
        save(tmp_path / run, 20)
    codes = [main(["to-hf", *common(tools, hf, tmp_path / run), "--out", str(tmp_path / "out")]) for run in ("a", "b")]
    assert codes == [0, 1]
    assert f'holds checkpoints of "{tmp_path / "a"}". Give another --out.' in capsys.readouterr().err


def test_what_an_earlier_training_saved_in_the_same_folder_is_not_taken_for_this_one(tools, hf, tmp_path, capsys):
    save(tmp_path / "dist", 20)
    arguments = ["to-hf", *common(tools, hf, tmp_path / "dist"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    later = (tmp_path / "out/iter_0000020").stat().st_mtime + 1
    os.utime(tmp_path / "dist/iter_0000020/.metadata", (later, later))
    assert main(arguments) == 1
    assert "so of an earlier training. Delete it, or give another --out." in capsys.readouterr().err


def test_what_was_interrupted_is_not_taken_for_converted(tools, hf, tmp_path, capsys):
    save(tmp_path / "dist", 20)
    (tmp_path / "fail").touch()
    arguments = ["to-hf", *common(tools, hf, tmp_path / "dist"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert "iter_0000020: slime's converter ended with status 3" in capsys.readouterr().err
    assert not (tmp_path / "out/iter_0000020").exists()
    (tmp_path / "fail").unlink()
    assert main(arguments) == 0
    assert (tmp_path / "out/iter_0000020/arguments.json").is_file()


def test_a_dry_run_prints_the_commands_and_does_nothing(tools, hf, tmp_path, capsys):
    save(tmp_path / "dist", 20)
    arguments = ["to-hf", *common(tools, hf, tmp_path / "dist"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--dry-run"]) == 0
    (conversion,) = to_hf(tools, hf, tmp_path / "dist", tmp_path / "out")
    _, command, move = capsys.readouterr().out.splitlines()
    assert shlex.split(command) == conversion.command
    assert shlex.split(move) == ["mv", str(tmp_path / "out/.iter_0000020.partial"), str(conversion.target)]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("direction", "option", "file"),
    [
        (["to-hf", "--out", "x"], "--slime", "tools/convert_torch_dist_to_hf.py"),
        (["to-dist", "--model", "small"], "--slime", "tools/convert_hf_to_torch_dist.py"),
        (["to-hf", "--out", "x"], "--megatron", "megatron/core/__init__.py"),
    ],
)
def test_a_missing_tool_is_named_with_its_option(tools, hf, tmp_path, capsys, direction, option, file):
    arguments = [*direction, *common(tools, hf, tmp_path / "dist")]
    arguments[arguments.index(option) + 1] = str(tmp_path / "nowhere")
    assert main(arguments) == 1
    assert f"error: {option} {tmp_path / 'nowhere'}: has no {file}" in capsys.readouterr().err


def test_a_folder_without_a_complete_checkpoint_is_named(tools, hf, tmp_path):
    dist = tmp_path / "dist"
    with pytest.raises(ConversionError, match="no complete checkpoint iter_"):
        to_hf(tools, hf, dist, tmp_path / "out")
    save(dist, 40, complete=False)
    with pytest.raises(ConversionError, match="no complete checkpoint iter_"):
        to_hf(tools, hf, dist, tmp_path / "out")


def test_a_start_model_that_would_lose_something_is_not_converted(tools, hf, tmp_path, capsys):
    arguments = ["to-dist", *common(tools, hf, tmp_path / "dist"), "--model", "small"]
    (hf / "config.json").write_text('{"vocab_size": 96, "quantization_config": {"quant_method": "gptq"}}')
    assert main(arguments) == 1
    assert "the weights are quantized (config.json: quantization_config, quant_method gptq)" in capsys.readouterr().err
    (hf / "config.json").write_text('{"vocab_size": 96}')
    (hf / "model.safetensors").write_bytes(b"torn")
    assert main(arguments) == 1
    assert "model.safetensors: cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()
