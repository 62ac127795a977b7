#!/usr/bin/env bash
# Makes an environment in which SGLang 0.5.23 runs on the CPU, apart from ours (3.5 GB, a few minutes):
#   bash tests/optional/sglang_cpu/setup.sh [FOLDER]       # default: .venv beside this script
# Python 3.11, for which there is a CPU build of torch 2.13.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
folder=${1:-$here/.venv}
python3.11 -m venv "$folder" 2>/dev/null || python3 -m venv "$folder"
pip=("$folder/bin/python" -m pip install -qq --disable-pip-version-check)
"${pip[@]}" -r "$here/requirements.txt"
"${pip[@]}" --no-deps sglang==0.5.23 sglang-router==0.3.2 xgrammar==0.2.7 timm==1.0.25 torchvision==0.28.0
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# torchvision is built for CUDA: registering its kernels' shapes fails on a CPU build of torch. Nothing here needs them.
: >"$packages/torchvision/_meta_registrations.py"

# SGLang imports the names of its CUDA kernels, which have no CPU wheel; on this path it calls none of them.
mkdir -p "$packages/sgl_kernel"
cat >"$packages/sgl_kernel/__init__.py" <<'PYTHON'
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} needs CUDA")

    return absent
PYTHON

# SGLang takes the CPU path only if this variable says so; set here, it holds for whoever starts this interpreter.
echo 'import os; os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")' >"$packages/sitecustomize.py"

echo "$folder/bin/python"
