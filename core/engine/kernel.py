"""Builds decode_attention.cpp where a compiler is, once for a machine, and calls it.

PyTorch has no attention that reads pages on the CPU. Without a compiler the engine gathers the pages before each call
of PyTorch's own attention, which takes about three times as long.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from platformdirs import user_cache_path
from torch import Tensor

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("decode_attention.cpp")
# A linker that hears of -ffast-math adds code that makes every very small number of the whole process a zero.
COMPILE = "-std=c++17 -O3 -march=native -ffast-math -fopenmp -fPIC -c".split()
LINK = "-fopenmp -shared".split()
DTYPES = {torch.float32: "attend_float32", torch.bfloat16: "attend_bfloat16"}


@cache
def find_kernel() -> ctypes.CDLL | None:
    """Return the library, built if this machine has not built it yet; None, with a logged reason, if it cannot be."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        logger.info("no C++ compiler found: decode attention gathers the pages of the cache, which is slower")
        return None
    try:
        path = user_cache_path("tokentrue") / f"decode_attention-{_fingerprint(compiler)}.so"
        if not path.is_file():
            _build(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        logger.warning("%s cannot be built, so decode attention is slower: %s", SOURCE.name, detail)
        return None


def _fingerprint(compiler: str) -> str:
    """Name what the built file depends on: source, flags, compiler, and the instructions of this processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    words = "\n".join([SOURCE.read_text(encoding="utf-8"), *COMPILE, *LINK, version, platform.processor(), features])
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _build(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Other processes may build it at the same time; each moves a whole file into place.
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        compiled, linked = Path(scratch) / "kernel.o", Path(scratch) / "kernel.so"
        for arguments in ([*COMPILE, str(SOURCE), "-o", str(compiled)], [str(compiled), *LINK, "-o", str(linked)]):
            subprocess.run([compiler, *arguments], capture_output=True, text=True, check=True, timeout=120)
        linked.replace(path)


def attend_pages(
    library: ctypes.CDLL,
    q_NHD: Tensor,
    keys: Tensor,
    values: Tensor,
    table_NP: Tensor,
    lengths_N: Tensor,
    page_size: int,
) -> Tensor:
    """Attend with one query for each sequence to its first `lengths_N` tokens; return [N, H, D].

    `keys` and `values` are [places, K, D]; `table_NP` (int32) lists the pages of each sequence, `lengths_N` is int64.
    All tensors are on the CPU and contiguous; only the rows of the table may be parts of longer ones. Queries, keys and
    values have one of `DTYPES`.
    """
    count, heads, head_dim = q_NHD.shape
    kv_heads = keys.shape[1]
    out_NHD = torch.empty_like(q_NHD)
    tensors = [q_NHD, keys, values, table_NP, lengths_N, out_NHD]
    threads = torch.get_num_threads()
    sizes = (count, kv_heads, heads // kv_heads, head_dim, table_NP.stride(0), page_size, threads)
    getattr(library, DTYPES[q_NHD.dtype])(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_float(head_dim**-0.5),
    )
    return out_NHD
