#!/usr/bin/env bash
# Evaluate a run or any checkpoint on held-out tasks, with the baselines; --help lists the options:
#   bash agentic/compaction/evaluate.sh --run runs/compaction-tiny --data runs/data/compaction-tiny/test-long.jsonl --by pages
# A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m scripts.tokentrue evaluate heldout compaction "$@"
