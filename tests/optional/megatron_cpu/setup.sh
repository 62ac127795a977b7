#!/usr/bin/env bash
# Makes an environment with megatron-core and mbridge on the CPU, apart from ours (about 1.5 GB, a minute or two):
#   bash tests/optional/megatron_cpu/setup.sh [FOLDER]        # default: .venv beside this script
#   MEGATRON_PYTHON=FOLDER/bin/python SLIME_ROOT=... .venv/bin/python -m pytest tests/optional/megatron_cpu
# With SLIME_ROOT, slime's own converter is tested too. Neither is set: .venv beside this script, and no slime.
set -euo pipefail
folder=${1:-$(dirname "${BASH_SOURCE[0]}")/.venv}
python3 -m venv "$folder"
"$folder/bin/python" -m pip install -qq --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.23.0 \
  safetensors==0.8.0 megatron-core==0.16.1 mbridge==0.15.1 einops==0.8.2 psutil==7.2.2
echo "$folder/bin/python"
