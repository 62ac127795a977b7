#!/usr/bin/env bash
# Search-R1 from nothing to a report: data, retrieval service, warm start and GRPO, evaluation. After an interruption, run
# it again: it goes on.
#   bash agentic/search_r1/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/search_r1/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/search_r1/run.sh --preset paper --backend slime   # the same files on a cluster, in slime's container
#   bash agentic/search_r1/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run search_r1 "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train search_r1 "$@"

# The start model with its tokenizer, the corpus, then questions: no thing, person or town of one split is in another.
data=runs/data/search_r1-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.search_r1.tiny.start_model --out "$data"
[[ -f $data/corpus.jsonl ]] || "$python" -m agentic.search_r1.tiny.world --out "$data/corpus.jsonl"
tasks() { [[ -f $data/$1.jsonl ]] || "$python" -m agentic.search_r1.tiny.tasks --out "$data/$1.jsonl" "${@:2}"; }
tasks train --split train --count 4096
tasks dev --split dev --count 64
tasks test --split test --count 256
tasks test-four --split test --count 256 --others 3

# Training and evaluation ask the retrieval service: start it, and this script again beneath it.
[[ ${SERVICES_RUN:-} ]] || SERVICES_RUN=1 exec "$python" -m scripts.tokentrue serve services \
  agentic/search_r1/services/tiny.yaml --logs "$data/services" -- bash agentic/search_r1/run.sh "$@"
tokentrue train search_r1 "$@"

# Two evaluations at a time: one core each. `test-four` names four things in a question, where training named two.
evaluate() {
  tokentrue evaluate heldout search_r1 --run "$out" --data "$data/$1.jsonl" --by searches --variants "${@:2}" >"$out/evaluate-$1-$2.log"
}
echo "evaluation: before and after training, chance, and no search (see $out/evaluate-*.log)"
at_once "evaluate test trained" "evaluate test untrained untrained-greedy aimless-search no-search"
at_once "evaluate test-four trained" "evaluate test-four untrained"
tokentrue report "$out" --data test
