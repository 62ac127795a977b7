#!/usr/bin/env bash
# Coding from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/coding/run.sh                                 # preset tiny: two CPU cores, offline
#   bash agentic/coding/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/coding/run.sh --preset seed --engine slime    # on a cluster, in slime's container
#   bash agentic/coding/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run coding "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train coding "$@"

# The start model with its tokenizer, then tasks: no function of one split has the shape of one in another.
data=runs/data/coding-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.coding.tiny.start_model --out "$data"
tasks() {
  [[ -f $data/$1.jsonl ]] || "$python" -m agentic.coding.tiny.tasks --split "$2" --size "$3" --count "$4" --out "$data/$1.jsonl"
}
tasks train train function 240
tasks dev dev function 66
tasks test test function 128
tasks test-unseen test unseen 128
tasks test-guarded test guarded 128
tokentrue train coding "$@"

# Two evaluations at a time: one core each.
evaluate() {
  tokentrue evaluate heldout coding --run "$out" --data "$data/$1.jsonl" --by kind "${@:2}" >"$out/evaluate-$1.log"
}
evaluate_others() {
  for data_set in test-unseen test-guarded; do
    evaluate "$data_set" --variants untrained untrained-greedy trained
  done
}
echo "evaluation: before and after training, and edits without a look at the function (see $out/evaluate-*.log)"
at_once "evaluate test" evaluate_others
tokentrue report "$out" --data test
