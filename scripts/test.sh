#!/usr/bin/env bash
# All tests, or those that the arguments name: bash scripts/test.sh tests/unit -k drift
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
# The tests run several processes at a time, so idle threads of OpenMP sleep at once and leave their core.
export OMP_WAIT_POLICY=passive
export TOKENIZERS_PARALLELISM=false
# Two processes, each with whole files, in the order in which they were collected; -n 0 runs all in this one.
.venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder "$@"
