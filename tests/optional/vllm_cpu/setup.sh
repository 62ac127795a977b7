#!/usr/bin/env bash
# Makes an environment in which vLLM 0.32.0 runs on the CPU, apart from ours (3.1 GB, a few minutes):
#   bash tests/optional/vllm_cpu/setup.sh [FOLDER]       # default: .venv beside this script
# Python 3.11, for which there is a CPU build of torch 2.13.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
folder=${1:-$here/.venv}
python3.11 -m venv "$folder" 2>/dev/null || python3 -m venv "$folder"
"$folder/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -r "$here/requirements.txt"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# On CPUs vLLM 0.32 multiplies by a rearranged copy of the output head. A reload does not renew the copy of a head that is
# tied to the embedding. This plugin, which every process of vLLM loads, makes such a head use its own weights.
# VLLM_PLUGINS= in the environment switches it off.
cat >"$packages/tied_head.py" <<'PYTHON'
import torch


def register():
    from vllm.model_executor.layers import utils

    rearrange = utils.dispatch_cpu_unquantized_gemm

    def rearrange_all_but_heads(layer, remove_weight):
        if remove_weight:
            rearrange(layer, remove_weight)
        else:
            layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = rearrange_all_but_heads
PYTHON
mkdir -p "$packages/tied_head-1.dist-info"
printf 'Metadata-Version: 2.1\nName: tied-head\nVersion: 1\n' >"$packages/tied_head-1.dist-info/METADATA"
printf '[vllm.general_plugins]\ntied_head = tied_head:register\n' >"$packages/tied_head-1.dist-info/entry_points.txt"

echo "$folder/bin/python"
