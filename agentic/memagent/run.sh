#!/usr/bin/env bash
# MemAgent from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/memagent/run.sh                                  # preset tiny: two CPU cores, minutes, offline
#   bash agentic/memagent/run.sh --preset laptop                  # a real language model, SmolLM2-135M, on the same cores
#   bash agentic/memagent/run.sh --set run.seeds=[0]              # one seed only
#   bash agentic/memagent/run.sh --preset seed --set model.path=/models/Qwen2.5-1.5B-Instruct    # one GPU: see docs/settings.md
#   bash agentic/memagent/run.sh --preset seed --backend slime     # the same files on a cluster, in slime's container
#   bash agentic/memagent/run.sh --dry-run                        # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method memagent "$@"
