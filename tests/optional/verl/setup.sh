#!/usr/bin/env bash
# Makes an environment in which verl 0.9.1 runs on the CPU, apart from ours (1.9 GB, a few minutes):
#   bash tests/optional/verl/setup.sh [FOLDER]       # default: .venv beside this script
#   FOLDER/bin/python -m pytest tests/optional/verl
# Python 3.11, for which there is a CPU build of torch 2.13. verl asks for transformers below 5.11, so ours cannot serve.
# Neither vLLM nor SGLang is installed: our own engine stands behind verl's client.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
folder=${1:-$here/.venv}
python3.11 -m venv "$folder" 2>/dev/null || python3 -m venv "$folder"
pip=("$folder/bin/python" -m pip install -qq --disable-pip-version-check)
"${pip[@]}" -r "$here/requirements.txt"
"${pip[@]}" --no-deps --no-build-isolation -e "$here/../../.."
echo "$folder/bin/python"
