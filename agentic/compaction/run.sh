#!/usr/bin/env bash
# Compaction from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/compaction/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/compaction/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/compaction/run.sh --set compaction.train_summary=false --out runs/compaction-untrained-summaries
#   bash agentic/compaction/run.sh --dry-run                       # print the resolved recipe
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run compaction "$@"
# A recipe of your own brings its own data.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train compaction "$@"

# The start model with its tokenizer, then tasks; those of `test-long` have four to eight times the pages of training.
data=runs/data/compaction-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.compaction.tiny.start_model --out "$data"
tasks() { [[ -f $data/$1.jsonl ]] || "$python" -m agentic.compaction.tiny.tasks --split "$1" --out "$data/$1.jsonl" "${@:2}"; }
tasks train --count 4096 --pages 3 6
tasks dev --count 64 --pages 3 6
tasks test --count 256 --pages 3 6
tasks test-long --count 128 --pages 24 24
tokentrue train compaction "$@"

# Two evaluations at a time: one core each.
evaluate() {
  tokentrue evaluate heldout compaction --run "$out" --data "$data/$1.jsonl" --by pages >"$out/evaluate-$1.log"
}
echo "evaluation: before and after training, and histories that are not summed up with care (see $out/evaluate-*.log)"
at_once "evaluate test" "evaluate test-long"
tokentrue report "$out" --data test
