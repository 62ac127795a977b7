#!/usr/bin/env bash
# An agent from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/agent/run.sh                                  # preset tiny: two CPU cores, minutes, offline
#   bash agentic/agent/run.sh --set run.seeds=[0]              # one seed only
#   bash agentic/agent/run.sh --set agent.agents.lookup.run=examples.langgraph_agent.run --out runs/agent-langgraph
#   bash agentic/agent/run.sh --preset my_recipe.yaml          # your agent, your data, your model: see README.md
#   bash agentic/agent/run.sh --preset seed --backend slime     # on a cluster, in slime's container
#   bash agentic/agent/run.sh --dry-run                        # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
run_method agent "$@"
