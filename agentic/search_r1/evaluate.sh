#!/usr/bin/env bash
# Evaluate a run or any checkpoint on held-out tasks, with the baselines; --help lists the options:
#   bash agentic/search_r1/evaluate.sh --model CHECKPOINT --preset paper --data data/nq_test.jsonl --seeds 0
# The preset says where the retrieval service is. That of `tiny` is started for the command:
#   .venv/bin/tokentrue serve services agentic/search_r1/services/tiny.yaml --logs runs/data/search_r1-tiny/services -- \
#     bash agentic/search_r1/evaluate.sh --run runs/search_r1-tiny --data runs/data/search_r1-tiny/test-four.jsonl
# A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m scripts.tokentrue evaluate heldout search_r1 "$@"
