"""Builds the C++ files of this folder where a compiler is, once for a machine, and calls them.

PyTorch has no attention that reads pages on the CPU. Without a compiler the engine gathers the pages before each call
of PyTorch's own attention, which takes 2 to 3.5 times as long. On a CPU with tiles (Intel AMX) PyTorch rounds a row
of bfloat16 differently when the number of rows changes. Our product does not. On AMD's CPUs PyTorch multiplies float32
slower than ours, and rounds a row differently beside fewer than three others; ours has its bits beside more.
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
import torch.nn.functional as F
from platformdirs import user_cache_path
from torch import Tensor

logger = logging.getLogger(__name__)

SOURCES = [Path(__file__).with_name(name) for name in ("decode_attention.cpp", "linear.cpp")]
# A linker that hears of -ffast-math adds code that makes every very small number of the whole process a zero.
COMPILE = "-std=c++17 -O3 -march=native -ffast-math -fopenmp -fPIC -c".split()
LINK = "-fopenmp -shared".split()
DTYPES = {torch.float32: "attend_float32", torch.bfloat16: "attend_bfloat16"}
BLOCK, DEPTH = 32, 32
"""linear.cpp reads a weight of bfloat16 in panels of `BLOCK` rows, and `DEPTH` values of each row at a time."""
FEWEST_OUTPUTS = 12
"""Counts the outputs from which our product of float32 has the bits of PyTorch's."""


@cache
def find_kernel() -> ctypes.CDLL | None:
    """Return the library, built if this machine has not built it yet; None, with a logged reason, if it cannot be."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        logger.info("no C++ compiler found: decode attention is slower, and with AMX bfloat16 is rounded by the batch")
        return None
    try:
        path = user_cache_path("tokentrue") / f"engine-{_fingerprint(compiler)}.so"
        if not path.is_file():
            _build(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        logger.warning("the C++ files of the engine cannot be built, so it is slower: %s", detail)
        return None


def _fingerprint(compiler: str) -> str:
    """Name what the built file depends on: source, flags, compiler, and the instructions of this processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    sources = [source.read_text(encoding="utf-8") for source in SOURCES]
    words = "\n".join([*sources, *COMPILE, *LINK, version, platform.processor(), features])
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _build(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Other processes may build it at the same time; each moves a whole file into place.
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        linked = Path(scratch) / "engine.so"
        objects = [str(Path(scratch) / f"{source.stem}.o") for source in SOURCES]
        commands = [[*COMPILE, str(source), "-o", name] for source, name in zip(SOURCES, objects, strict=True)]
        for arguments in [*commands, [*objects, *LINK, "-o", str(linked)]]:
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


@cache
def has_tiles() -> bool:
    """Return whether this process may multiply bfloat16 on the tiles of its CPU."""
    library = find_kernel()
    return library is not None and bool(library.has_tiles())


@cache
def panel_width() -> int:
    """Return how many outputs a panel of float32 has; 0 where PyTorch's product stays."""
    library = find_kernel()
    return 0 if library is None else int(library.panel_width())


def pack_panels(weight_NK: Tensor) -> Tensor:
    """Return a weight in the order in which linear.cpp reads it.

    Of bfloat16, N and K are multiples of 32, and the shape is [N / 32, K / 32, 2, 16, 16, 2]. A panel has 32 rows. It
    lists K in steps of 32 values. A step has two tiles of 16 rows each. A tile lists 16 pairs of values: the first pair
    of all rows, then the second, and so on.

    Of float32, the shape is [panels, K, panel_width()]: a panel lists the first value of all its rows, then the second,
    and so on. Zeros fill up the last panel.
    """
    rows, values = weight_NK.shape
    if weight_NK.dtype == torch.float32:
        rest = -rows % panel_width()
        padded = F.pad(weight_NK, (0, 0, 0, rest)) if rest else weight_NK  # padding by nothing would copy, too
        return padded.view(-1, panel_width(), values).transpose(1, 2).contiguous()
    split = weight_NK.view(rows // BLOCK, 2, BLOCK // 2, values // DEPTH, DEPTH // 2, 2)
    return split.permute(0, 3, 1, 4, 2, 5).contiguous()


def multiply(x_TK: Tensor, panels: Tensor, bias_N: Tensor | None, rows: int) -> Tensor:
    """Return `x_TK @ weight.T + bias_N`, [T, N], for a weight of N = `rows` rows that `pack_panels` has packed.

    In float32, with `FEWEST_OUTPUTS` rows or more, it has the bits that PyTorch's product has on one thread for four
    tokens or more; of fewer PyTorch's has others.
    """
    library = find_kernel()
    tokens, values = x_TK.shape
    depth = panels.shape[1] * (1 if panels.dtype == torch.float32 else DEPTH)
    # C++ reads whatever it is given.
    assert library is not None
    assert (x_TK.dtype, x_TK.device.type, values) == (panels.dtype, "cpu", depth)
    x_TK = x_TK.contiguous()
    out_TN = x_TK.new_empty(tokens, rows)
    sizes = (tokens, values, rows, torch.get_num_threads())
    function = library.multiply_float32 if panels.dtype == torch.float32 else library.multiply_bfloat16
    function(
        ctypes.c_void_p(x_TK.data_ptr()),
        ctypes.c_void_p(panels.data_ptr()),
        ctypes.c_void_p(None if bias_N is None else bias_N.data_ptr()),
        ctypes.c_void_p(out_TN.data_ptr()),
        (ctypes.c_int64 * len(sizes))(*sizes),
    )
    return out_TN
