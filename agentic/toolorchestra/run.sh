#!/usr/bin/env bash
# ToolOrchestra from nothing to a report: data, services, warm start and GRPO, evaluation. After an interruption, run it
# again: it goes on.
#   bash agentic/toolorchestra/run.sh                               # preset tiny: two CPU cores, minutes, offline
#   bash agentic/toolorchestra/run.sh --set run.seeds=[0]           # one seed only
#   bash agentic/toolorchestra/run.sh --preset seed --backend slime  # the same files on a cluster, in slime's container
#   bash agentic/toolorchestra/run.sh --dry-run                     # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run toolorchestra "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train toolorchestra "$@"

# The start model with its tokenizer, the corpus, then tasks: no thing and no expression of one split is in another.
data=runs/data/toolorchestra-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.toolorchestra.tiny.start_model --out "$data"
[[ -f $data/corpus.jsonl ]] || "$python" -m agentic.toolorchestra.tiny.facts --out "$data/corpus.jsonl"
tasks() { [[ -f $data/$1.jsonl ]] || "$python" -m agentic.toolorchestra.tiny.tasks --out "$data/$1.jsonl" "${@:2}"; }
tasks train --split train --count 4096
tasks dev --split dev --count 64
tasks test --split test --count 256
tasks test-other-preference --split test --count 256 --other-preference
tasks test-other-wishes --split test --count 256 --other-wishes

# Training and evaluation ask the experts and the retrieval service: start these, and this script again beneath them.
[[ ${SERVICES_RUN:-} ]] || SERVICES_RUN=1 exec "$python" -m scripts.tokentrue serve services \
  agentic/toolorchestra/services/tiny.yaml --logs "$data/services" -- bash agentic/toolorchestra/run.sh "$@"
tokentrue train toolorchestra "$@"

# Three evaluations at once. `test-other-preference` asks the same questions with other preferences, and
# `test-other-wishes` with the same preferences in sentences that nobody says in training.
evaluate() {
  tokentrue evaluate heldout toolorchestra --run "$out" --data "$data/$1.jsonl" --tasks 256 --by kind preference case \
    >"$out/evaluate-$1.log"
}
echo "evaluation: orchestrators before and after training, and fixed routes (see $out/evaluate-*.log)"
at_once "evaluate test" "evaluate test-other-preference" "evaluate test-other-wishes"
"$python" -m agentic.toolorchestra.tiny.compare "$out"
tokentrue report "$out" --data test
