#!/usr/bin/env bash
# Evaluate any checkpoint with the agents of a recipe, on held-out tasks; --help lists the options:
#   bash agentic/agent/evaluate.sh --run runs/agent-tiny --data runs/data/agent-tiny/test.jsonl
#   bash agentic/agent/evaluate.sh --model CHECKPOINT --untrained Qwen/Qwen3-8B --preset seed
# A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m scripts.tokentrue evaluate heldout agent "$@"
