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
prepare_run agent "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train agent "$@"

# The start model with its tokenizer, then questions: no thing of one split is in another.
data=runs/data/agent-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.agent.tiny.start_model --out "$data"
tasks() { [[ -f $data/$1.jsonl ]] || "$python" -m agentic.agent.tiny.tasks --out "$data/$1.jsonl" "${@:2}"; }
tasks train --split train --count 2048
tasks dev --split dev --count 64
tasks test --split test --count 256
tasks test-eight --split test --count 256 --others 7
tokentrue train agent "$@"

# Two evaluations at a time: one core each. `test-eight` names eight things in a question, where training named four.
evaluate() {
  tokentrue evaluate heldout agent --run "$out" --data "$data/$1.jsonl" --tasks 256 --variants "${@:2}" >"$out/evaluate-$1-$2.log"
}
echo "evaluation: the agent before and after training, and without its tool (see $out/evaluate-*.log)"
at_once "evaluate test untrained untrained-greedy no-tool" "evaluate test trained"
at_once "evaluate test-eight untrained" "evaluate test-eight trained"
tokentrue report "$out" --data test
