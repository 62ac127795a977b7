#!/usr/bin/env bash
# All tests, or those that the arguments name: bash scripts/test.sh tests/unit -k drift
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
# The tests run several processes at a time, so idle threads of OpenMP sleep at once and leave their core.
export OMP_WAIT_POLICY=passive
export TOKENIZERS_PARALLELISM=false
.venv/bin/python -m pytest -q "$@"
