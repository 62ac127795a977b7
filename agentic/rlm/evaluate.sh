#!/usr/bin/env bash
# Evaluate a run or any checkpoint on held-out tasks; --help lists the options:
#   bash agentic/rlm/evaluate.sh --run runs/rlm-tiny --data runs/data/rlm-tiny/test.jsonl
#   bash agentic/rlm/evaluate.sh --model CHECKPOINT --preset paper --data data/hotpotqa_dev.parquet --seeds 0 1 2 3
# A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m scripts.tokentrue evaluate heldout rlm "$@"
