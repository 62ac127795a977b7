#!/usr/bin/env bash
# Makes an environment with the schemas and validators of OpenEnv and Harbor, apart from ours (200 MB, a minute):
#   bash tests/optional/exchange/setup.sh     # .venv beside this script
#   pytest tests/optional/exchange
# Harbor asks for Python 3.12 for its agents and sandboxes; its models of trajectories run on 3.11 as well.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
python3.11 -m venv "$here/.venv" 2>/dev/null || python3 -m venv "$here/.venv"
pip=("$here/.venv/bin/python" -m pip install -qq --disable-pip-version-check)
"${pip[@]}" -r "$here/requirements.txt"
"${pip[@]}" --no-deps --ignore-requires-python openenv==0.10.0 harbor==0.26.0
