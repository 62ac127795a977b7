#!/usr/bin/env bash
# Compaction from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/compaction/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/compaction/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/compaction/run.sh --set compaction.train_summary=false --out runs/compaction-untrained-summaries
#   bash agentic/compaction/run.sh --dry-run                       # print the resolved recipe
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method compaction "$@"
