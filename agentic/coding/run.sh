#!/usr/bin/env bash
# Coding from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/coding/run.sh                                 # preset tiny: two CPU cores, offline
#   bash agentic/coding/run.sh --preset laptop                 # a real language model, SmolLM2-135M, on the same cores
#   bash agentic/coding/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/coding/run.sh --preset seed --backend slime    # on a cluster, in slime's container
#   bash agentic/coding/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method coding "$@"
