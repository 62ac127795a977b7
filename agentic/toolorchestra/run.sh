#!/usr/bin/env bash
# ToolOrchestra from nothing to a report: data, services, warm start and GRPO, evaluation. After an interruption, run it
# again: it goes on.
#   bash agentic/toolorchestra/run.sh                               # preset tiny: two CPU cores, minutes, offline
#   bash agentic/toolorchestra/run.sh --set run.seeds=[0]           # one seed only
#   bash agentic/toolorchestra/run.sh --preset seed --engine slime  # the same files on a cluster, in slime's container
#   bash agentic/toolorchestra/run.sh --dry-run                     # print the resolved recipe, or slime's command
set -euo pipefail
method=toolorchestra
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/method.sh"

# The start model with its tokenizer, the corpus, then tasks: no thing and no expression of one split is in another.
data=runs/data/toolorchestra-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.toolorchestra.tiny.start_model --out "$data"
[[ -f $data/corpus.jsonl ]] || "$python" -m agentic.toolorchestra.tiny.facts --out "$data/corpus.jsonl"
tasks() { [[ -f $data/$1.jsonl ]] || "$python" -m agentic.toolorchestra.tiny.tasks --out "$data/$1.jsonl" "${@:2}"; }
tasks train --split train --count 4096
tasks dev --split dev --count 64
tasks test --split test --count 256
tasks test-other-preference --split test --count 256 --other-preference

# Two evaluations at a time: one core each. `test-other-preference` asks the same questions with other preferences.
evaluate() {
  "$python" -m benchmarks.heldout toolorchestra --run "$out" --data "$data/$1.jsonl" --tasks 256 --by kind preference case \
    >"$out/evaluate-$1.log"
}
evaluate_all() {
  echo "evaluation: orchestrators before and after training, and fixed routes (see $out/evaluate-*.log)"
  at_once "evaluate test" "evaluate test-other-preference"
  "$python" -m agentic.toolorchestra.tiny.compare "$out"
}

# All that asks the experts and the retrieval service, which end with this script.
export -f train at_once evaluate evaluate_all
export python method preset out data
"$python" -m scripts.services "agentic/$method/services/tiny.yaml" --logs "$data/services" -- \
  bash -euo pipefail -c 'arguments=("$@") && train && evaluate_all' - ${arguments[@]+"${arguments[@]}"}
"$python" -m core.report "$out" --data test
