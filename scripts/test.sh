#!/usr/bin/env bash
# All tests, or those that the arguments name: bash scripts/test.sh tests/unit -k drift
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
# OpenMP's idle threads spin by default, which makes torch 2.5 to 15 times slower when anything else needs their core.
export OMP_WAIT_POLICY=passive
export TOKENIZERS_PARALLELISM=false
.venv/bin/python -m pytest -q "$@"
