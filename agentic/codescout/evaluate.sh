#!/usr/bin/env bash
# Evaluate a run or any checkpoint on held-out tasks, with the baselines; --help lists the options:
#   bash agentic/codescout/evaluate.sh --run runs/codescout-tiny --data runs/data/codescout-tiny/test.jsonl --by kind
# Published scores have an evaluator of their own: tokentrue evaluate localize --help.
# A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m scripts.tokentrue evaluate heldout codescout "$@"
