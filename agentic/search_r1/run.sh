#!/usr/bin/env bash
# Search-R1 from nothing to a report: data, retrieval service, warm start and GRPO, evaluation. After an interruption, run
# it again: it goes on.
#   bash agentic/search_r1/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/search_r1/run.sh --preset visits                 # it visits pages and sums them up, too
#   bash agentic/search_r1/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/search_r1/run.sh --preset paper --backend slime   # the same files on a cluster, in slime's container
#   bash agentic/search_r1/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method search_r1 "$@"
