#!/usr/bin/env bash
# AgentFlow from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/agentflow/run.sh                                 # preset tiny: two CPU cores, minutes, offline
#   bash agentic/agentflow/run.sh --set run.seeds=[0]             # one seed only
#   bash agentic/agentflow/run.sh --preset seed --engine slime    # the same files on a cluster, in slime's container
#   bash agentic/agentflow/run.sh --dry-run                       # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run agentflow "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $experiment == tiny ]] || exec "$python" -m scripts.tokentrue train agentflow "$@"

# The start model with its tokenizer, then questions: no fact of one split is in another.
data=runs/data/agentflow-tiny
[[ -f $data/model/model.safetensors ]] || "$python" -m agentic.agentflow.tiny.start_model --out "$data"
for split in train:2048 dev:64 test:256; do
  file=$data/${split%:*}.jsonl
  [[ -f $file ]] || "$python" -m agentic.agentflow.tiny.tasks --split "${split%:*}" --count "${split#*:}" --out "$file"
done
tokentrue train agentflow "$@"

# Two evaluations at a time: one core each.
evaluate() {
  tokentrue evaluate heldout agentflow --run "$out" --data "$data/test.jsonl" --tasks 256 --variants "$@" >"$out/evaluate-$1.log"
}
echo "evaluation: the planner before and after training, and planners that cannot choose (see $out/evaluate-*.log)"
at_once "evaluate untrained always-python-coder no-tool" "evaluate trained always-base-generator random-tool"
tokentrue report "$out"
