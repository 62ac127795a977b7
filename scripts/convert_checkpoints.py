"""Convert checkpoints between Hugging Face folders and Megatron's torch_dist with slime's own converters.

    tokentrue convert to-dist --hf Qwen/Qwen2.5-7B-Instruct --dist /data/start --model qwen2.5-7B
    tokentrue convert to-hf --hf Qwen/Qwen2.5-7B-Instruct --dist /data/run --out /data/run_hf
    tokentrue convert to-hf ... --dry-run

Run it in slime's container, where slime and Megatron-LM are in /root. A finished conversion is left alone, and an
interrupted one starts again: each output is written to a hidden folder beside its target and renamed when it is
complete.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.engine import weights
from core.hub import CheckpointError, check_unquantized, read_json, resolve
from core.options import show_errors
from core.runs.inputs import ORIGIN, describe_weights, is_of_other_weights

CONVERTERS = {"to-dist": "convert_hf_to_torch_dist.py", "to-hf": "convert_torch_dist_to_hf.py"}
"""Maps a direction to a file of slime's tools/."""
TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron writes it when a checkpoint is complete."""


class ConversionError(RuntimeError):
    """Says why a conversion cannot be done, and what to do."""


@dataclass(frozen=True)
class Conversion:
    """Describes one run of a converter: `command` writes `partial_path(target)`, which is then renamed."""

    target: Path
    command: Sequence[str]
    to_hf: bool = False
    origin: str = ""
    """Holds what goes into the file ORIGIN."""

    def run(self) -> None:
        """Run the command; raise ConversionError if it fails."""
        partial = partial_path(self.target)
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        status = subprocess.run(self.command).returncode
        if status:
            raise ConversionError(f"{self.target}: slime's converter ended with status {status}; see above")
        if self.to_hf:
            # slime writes bfloat16 and copies the start model's config, whatever that says.
            weights.write_dtype(partial, weights.check(partial))
        if self.origin:  # beside the Hugging Face folders, which are all of one run
            ((self.target.parent if self.to_hf else partial) / ORIGIN).write_text(self.origin, encoding="utf-8")
        partial.rename(self.target)


def partial_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


@dataclass(frozen=True)
class ConverterTools:
    """Holds the folders of slime and Megatron-LM, whose packages this Python has."""

    slime: Path
    megatron: Path

    def check(self, direction: str) -> None:
        """Raise ConversionError, which names the option, if a folder lacks the file that it must have."""
        for option, folder, file in (
            ("--slime", self.slime, f"tools/{CONVERTERS[direction]}"),
            ("--megatron", self.megatron, "megatron/core/__init__.py"),
        ):
            if not (folder / file).is_file():
                raise ConversionError(f"{option} {folder}: has no {file}. Give the folder of its source: {option} PATH")

    def command(self, tool: str, *args: str, gpus: int = 1) -> list[str]:
        """Return the command line of a converter; several GPUs take torchrun."""
        launcher = [sys.executable]
        if gpus > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        path = f"PYTHONPATH={self.megatron}:{self.slime}"
        return ["env", path, "CUDA_DEVICE_MAX_CONNECTIONS=1", *launcher, str(self.slime / "tools" / tool), *args]

    def model_args(self, model: str) -> list[str]:
        """Return the architecture in Megatron's options: MODEL_ARGS of slime's scripts/models/`model`.sh."""
        folder = self.slime / "scripts" / "models"
        script = folder / f"{model}.sh"
        if not script.is_file():
            known = ", ".join(sorted(path.stem for path in folder.glob("*.sh")))
            raise ConversionError(f"--model {model}: no file {script}. slime knows: {known}")
        shell = ["bash", "-ec", 'source "$1" >&2; printf "%s\\0" "${MODEL_ARGS[@]}"', "bash", str(script)]
        printed = subprocess.run(shell, stdout=subprocess.PIPE, text=True)
        if printed.returncode:
            raise ConversionError(f"{script}: bash ended with status {printed.returncode}; see above")
        return printed.stdout.split("\0")[:-1]


def to_dist(tools: ConverterTools, hf: Path, dist: Path, model: str, *, gpus: int = 1) -> list[Conversion]:
    """Plan `hf` -> `dist`, the torch_dist checkpoint that training starts from; return nothing if it exists.

    Raises:
        ConversionError: it was made from other weights, or is not complete.
    """
    if (dist / TRACKER).is_file():
        if is_of_other_weights(dist, hf):
            raise ConversionError(f"{dist}: was made from other weights than those of {hf}. Give another --dist.")
        return []
    if dist.exists():
        raise ConversionError(f"{dist}: exists but holds no complete checkpoint (no {TRACKER}). Delete it first.")
    io = ["--hf-checkpoint", str(hf), "--save", str(partial_path(dist))]
    command = tools.command(CONVERTERS["to-dist"], *tools.model_args(model), *io, gpus=gpus)
    return [Conversion(dist, command, origin=describe_weights(hf))]


def to_hf(tools: ConverterTools, hf: Path, dist: Path, out: Path) -> list[Conversion]:
    """Plan one Hugging Face folder in `out` for each complete checkpoint of `dist` that lacks it.

    Training started from the model `hf`: its config and tokenizer are copied. Megatron pads the embedding; the size of
    this model's vocabulary tells the converter which rows to drop.

    Raises:
        ConversionError: there is no checkpoint, or `out` holds those of another training.
    """
    found = {folder.name: folder for folder in sorted(dist.glob("iter_*")) if is_complete(folder)}
    if not found:
        raise ConversionError(f"{dist}: no complete checkpoint iter_*/. Give the folder that training saves to.")
    origin, told = json.dumps(str(dist.resolve())), out / ORIGIN
    if told.is_file() and told.read_text(encoding="utf-8") != origin:
        raise ConversionError(f"{out}: holds checkpoints of {told.read_text(encoding='utf-8')}. Give another --out.")
    for name, saved in found.items():
        if (out / name).exists() and (saved / ".metadata").stat().st_mtime > (out / name).stat().st_mtime:
            why = f"is older than {saved}, so of an earlier training. Delete it, or give another --out."
            raise ConversionError(f"{out / name}: {why}")
    targets = {name: out / name for name in found if not (out / name).exists()}
    assets = ["--origin-hf-dir", str(hf), "--vocab-size", str(vocabulary_size(hf))]

    def command(source: Path, partial: Path) -> list[str]:
        io = ["--input-dir", str(source), "--output-dir", str(partial)]
        return tools.command(CONVERTERS["to-hf"], *io, *assets)

    return [
        Conversion(target, command(found[name], partial_path(target)), True, origin) for name, target in targets.items()
    ]


def is_complete(iteration: Path) -> bool:
    """Tell whether Megatron finished this save: torch_dist writes `.metadata` after all shards."""
    return (iteration / ".metadata").is_file() and (iteration / "common.pt").is_file()


def vocabulary_size(hf: Path) -> int:
    config = read_json(hf / "config.json")
    size: int | None = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    if size is None:
        raise CheckpointError(f"{hf / 'config.json'}: has no vocab_size; is this the config of a language model?")
    return size


@show_errors(ConversionError, CheckpointError, OSError)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    conversions = plan_conversions(options)
    if not conversions:
        print("nothing to do: all of it is converted already")
    for conversion in conversions:
        print(f"# {conversion.target}\n{shlex.join(conversion.command)}", flush=True)
        if options.dry_run:
            print(shlex.join(["mv", str(partial_path(conversion.target)), str(conversion.target)]))
        else:
            conversion.run()
    return 0


def plan_conversions(options: argparse.Namespace) -> list[Conversion]:
    """Return the conversions that the command line asks for and that are not done yet."""
    tools = ConverterTools(options.slime.absolute(), options.megatron.absolute())
    tools.check(options.direction)
    dist = options.dist.absolute()
    if options.direction == "to-dist":
        hf = resolve(options.hf, weights=not options.dry_run).absolute()
        check_unquantized(hf)
        if any(hf.glob("*.safetensors")):
            weights.check(hf)
        return to_dist(tools, hf, dist, options.model, gpus=options.gpus)
    hf = resolve(options.hf, weights=False).absolute()
    return to_hf(tools, hf, dist, options.out.absolute())


def make_parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--hf", required=True, metavar="ID_OR_PATH", help="the model that training starts from")
    common.add_argument("--dist", required=True, type=Path, metavar="DIR", help="torch_dist checkpoints")
    common.add_argument(
        "--slime", type=Path, default=Path("/root/slime"), help="folder of slime's source (default: %(default)s)"
    )
    common.add_argument("--megatron", type=Path, default=Path("/root/Megatron-LM"), help="default: %(default)s")
    common.add_argument("--dry-run", action="store_true", help="print the commands and stop")
    first, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="tokentrue convert", description=first)
    directions = parser.add_subparsers(dest="direction", required=True)
    there = directions.add_parser("to-dist", parents=[common], help="Hugging Face -> torch_dist")
    there.add_argument("--model", required=True, help="its name in slime's scripts/models, such as qwen2.5-7B")
    there.add_argument(
        "--gpus", type=int, default=1, help="GPUs of this machine; give several if one cannot hold the model"
    )
    back = directions.add_parser("to-hf", parents=[common], help="torch_dist -> Hugging Face")
    back.add_argument("--out", required=True, type=Path, metavar="DIR", help="gets one folder per iteration")
    return parser
