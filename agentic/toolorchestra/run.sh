#!/usr/bin/env bash
# ToolOrchestra from nothing to a report: data, services, warm start and GRPO, evaluation. After an interruption, run it
# again: it goes on.
#   bash agentic/toolorchestra/run.sh                               # preset tiny: two CPU cores, minutes, offline
#   bash agentic/toolorchestra/run.sh --set run.seeds=[0]           # one seed only
#   bash agentic/toolorchestra/run.sh --preset seed --backend slime  # the same files on a cluster, in slime's container
#   bash agentic/toolorchestra/run.sh --dry-run                     # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method toolorchestra "$@"
