"""Hashes what a run rests on: data, code, model, tokenizer and chat template, so that a resumed run tells a change.

Each file has its size and a SHA-256. It is over all bytes, but for safetensors above WHOLE_BYTES: there it is over the
header, which has the name, type and place of every tensor, and over the first and last PART_BYTES of every tensor. A
training or conversion changes all parts of a tensor, and reading them takes no minute where the whole takes many.

`collect_versions` says what it ran on: Python, packages, git commit, processor and GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from core.hub import SMALL_FILES
from core.options import FUNCTION, Section, find_marked, import_function

WHOLE_BYTES = 256 << 20
PART_BYTES = 4096
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")

_TESTS = re.compile(r"/(tests/[^/]*|(test_|conftest)[^/]*)$")

CODE = "code/"
"""Begins the names of files of Python and prompts: the method's, and those of functions that the recipe names."""

ORIGIN = "converted_from.json"
"""Names the file that tells what a checkpoint was converted from: the hashes of weights, or a folder of torch_dist."""

Hashes = dict[str, dict[str, Any]]
"""Maps the name of each file to its `size` and `sha256`."""


def list_code(folder: Path, recipe: Section) -> dict[str, Path]:
    """List the files that a rollout follows from: those of the method's folder, and of functions that the recipe names.

    Presets, services and tests are none of them, nor is what `core` has. Raises RecipeError as `import_function`.
    """
    found = [path for pattern in ("*.py", "*/*.py", "*.yaml") for path in sorted(folder.glob(pattern))]
    files = {f"{CODE}{path.relative_to(folder)}": path for path in found if not _TESTS.search(path.as_posix())}
    for key, name, _ in find_marked(recipe, FUNCTION):
        if name is not None:
            module = sys.modules.get(getattr(import_function(key, name), "__module__", ""))
            if file := getattr(module, "__file__", None):  # what is written in C has none
                files[CODE + key] = Path(file)
    return files


def hash_inputs(data: Mapping[str, Path], models: Mapping[str, Path]) -> Hashes:
    """Hash files of data, or all files of a folder, and the files of models: weights, config, tokenizer and template.

    A file is named by its key, such as `data.train`; a file of a folder is that with its place there. What `map` and
    `filter` of `datasets` leave beside a data set, `cache-*`, is none of its files.
    """
    files = dict[str, Path]()
    for key, path in data.items():
        found = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("cache-"))
        files |= {f"{key}/{file.relative_to(path)}": file for file in found} if path.is_dir() else {key: path}
    for key, folder in models.items():
        found = [file for pattern in (*SMALL_FILES, "*.safetensors") for file in folder.glob(pattern)]
        files |= {f"{key}/{file.name}": file for file in sorted(found)}
    return {name: hash_file(path) for name, path in files.items()}


def describe_weights(hf: Path) -> str:
    """Return the names and hashes of a model's weights as JSON; "" where they are not here, as for a dry run."""
    hashes = {name: entry for name, entry in hash_inputs({}, {"hf": hf}).items() if name.endswith(".safetensors")}
    return json.dumps(hashes, indent=2) if hashes else ""


def is_of_other_weights(checkpoint: Path, hf: Path) -> bool:
    """Return whether ORIGIN in a checkpoint tells of other weights than those of `hf`; without both nobody knows."""
    told = checkpoint / ORIGIN
    return told.is_file() and describe_weights(hf) not in ("", told.read_text(encoding="utf-8"))


def hash_file(path: Path) -> dict[str, Any]:
    """Return the size of a file and its hash."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if path.suffix != ".safetensors" or size <= WHOLE_BYTES:
            return {"size": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        digest = hashlib.sha256()
        for part in _read_parts(file):
            digest.update(part)
    return {"size": size, "sha256": digest.hexdigest(), "of": "header and ends of tensors"}


def _read_parts(file: BinaryIO) -> Iterator[bytes]:
    # safetensors: the length of the header in 8 bytes, the header in JSON, then the tensors at places from there on.
    header = file.read(int.from_bytes(file.read(8), "little"))
    yield header
    base = file.tell()
    for name, tensor in json.loads(header).items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            for place in (begin, max(begin, end - PART_BYTES)):
                file.seek(base + place)
                yield file.read(min(PART_BYTES, end - place))


def list_input_changes(before: Hashes, now: Hashes) -> list[str]:
    """Describe each file that is another one than before, in one line."""

    def show(hashes: Hashes, name: str) -> str:
        entry = hashes.get(name)
        return f"{entry['size']:,} bytes, sha256 {entry['sha256'][:12]}" if entry else "absent"

    names = sorted(before.keys() | now.keys())
    return [f"{n}: {show(before, n)} before, {show(now, n)} now" for n in names if before.get(n) != now.get(n)]


def collect_versions() -> dict[str, Any]:
    """Collect the facts of `versions.json`; an unknown one is None."""
    import torch  # here, because reading a finished run needs no torch

    return {
        "python": platform.python_version(),
        **{name: package_version(name) for name in PACKAGES},
        "git": _git_commit(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def package_version(name: str) -> str | None:
    """Return the version of a package, None when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit, with `-dirty` when tracked files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
