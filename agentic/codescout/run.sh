#!/usr/bin/env bash
# CodeScout from nothing to a report: data, warm start and GSPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/codescout/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/codescout/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/codescout/run.sh --preset paper --backend slime   # on a cluster, in slime's container
#   bash agentic/codescout/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method codescout "$@"
