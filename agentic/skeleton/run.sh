#!/usr/bin/env bash
# Skeleton from nothing to a report. After an interruption, run it again: it goes on.
#   bash agentic/skeleton/run.sh  # preset tiny: two CPU cores, minutes, offline
#   bash agentic/skeleton/run.sh --set run.seeds=[0]  # one seed only
#   bash agentic/skeleton/run.sh --dry-run  # print the commands and the resolved recipe
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method skeleton "$@"
