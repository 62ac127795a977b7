#!/usr/bin/env bash
# ReTool from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/retool/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/retool/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/retool/run.sh --preset paper --backend slime   # on a cluster, in slime's container
#   bash agentic/retool/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run retool "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train retool "$@"

# The start model with its tokenizer, then questions: none is in two splits. The last two files have larger numbers than
# training, and one word more.
data=runs/data/retool-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.retool.tiny.start_model --out "$data"
tasks() { [[ -f $data/$1.jsonl ]] || "$python" -m agentic.retool.tiny.tasks --out "$data/$1.jsonl" "${@:2}"; }
tasks train --split train --count 2048
tasks dev --split dev --count 64
tasks test --split test --count 256
tasks test-larger-numbers --split test --count 256 --domain larger-numbers
tasks test-longer --split test --count 256 --domain longer
tokentrue train retool "$@"

# Two evaluations at a time: one core each.
evaluate() {
  tokentrue evaluate heldout retool --run "$out" --data "$data/$1.jsonl" --by words "${@:2}" >"$out/evaluate-$1.log"
}
evaluate_others() {
  for data_set in test-larger-numbers test-longer; do
    evaluate "$data_set" --variants untrained untrained-greedy trained
  done
}
echo "evaluation: before and after training, and without the words or without programs (see $out/evaluate-*.log)"
at_once "evaluate test" evaluate_others
tokentrue report "$out" --data test
