#!/usr/bin/env bash
# AgentFlow from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/agentflow/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/agentflow/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/agentflow/run.sh --preset seed --backend slime    # the same files on a cluster, in slime's container
#   bash agentic/agentflow/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run agentflow "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train agentflow "$@"

# The start model with its tokenizer, then questions: no fact of one split is in another. The last two files ask about
# numbers and things of no training question.
data=runs/data/agentflow-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.agentflow.tiny.start_model --out "$data"
tasks() { [[ -f $data/$1.jsonl ]] || "$python" -m agentic.agentflow.tiny.tasks --out "$data/$1.jsonl" "${@:2}"; }
tasks train --split train --count 2048
tasks dev --split dev --count 64
tasks test --split test --count 256
tasks test-larger-numbers --split test --count 256 --domain larger-numbers
tasks test-other-things --split test --count 256 --domain other-things
tokentrue train agentflow "$@"

# Two evaluations at a time: one core each.
evaluate() {
  tokentrue evaluate heldout agentflow --run "$out" --data "$data/$1.jsonl" --tasks 256 "${@:2}" >"$out/evaluate-$1.log"
}
evaluate_others() {
  for data_set in test-larger-numbers test-other-things; do
    evaluate "$data_set" --variants untrained untrained-greedy trained
  done
}
echo "evaluation: the planner before and after training, and planners that cannot choose (see $out/evaluate-*.log)"
at_once "evaluate test --by kind" evaluate_others
tokentrue report "$out" --data test
