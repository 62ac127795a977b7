#!/usr/bin/env bash
# Installs verifiers into the environment of PYTHON (default: python3), with two tasksets of its repository, and makes an
# environment beside this script for OpenEnv's servers (400 MB, some minutes):
#   VERIFIERS_ROOT=CHECKOUT bash tests/optional/environments/setup.sh
#   OPENENV_ROOT=CHECKOUT pytest tests/optional/environments
# Measured with verifiers at a60a606ec and meta-pytorch/OpenEnv at 685de411, and the packages of the requirements files.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
install=(-m pip install -qq --disable-pip-version-check)
python=${PYTHON:-python3}
"$python" -m pip freeze --exclude-editable > "$here/.venv-kept.txt"
"$python" "${install[@]}" -r "$here/requirements.txt" -c "$here/.venv-kept.txt"
rm "$here/.venv-kept.txt"
"$python" "${install[@]}" --no-deps "$VERIFIERS_ROOT"/environments/{scratchpad,glossary,kuhn_poker}
python3 -m venv "$here/.venv"
"$here/.venv/bin/python" "${install[@]}" -r "$here/requirements-openenv.txt"
