#!/usr/bin/env bash
# MemAgent from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/memagent/run.sh                                  # preset tiny: two CPU cores, minutes, offline
#   bash agentic/memagent/run.sh --set run.seeds=[0]              # one seed only
#   bash agentic/memagent/run.sh --preset seed --set model.path=/models/Qwen2.5-1.5B-Instruct    # one GPU: see README.md
#   bash agentic/memagent/run.sh --preset seed --engine slime     # the same files on a cluster, in slime's container
#   bash agentic/memagent/run.sh --dry-run                        # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run memagent "$@"
# Other presets bring their own data and are evaluated by evaluate.sh.
[[ $out ]] || exec "$python" -m scripts.tokentrue train memagent "$@"

# The start model with its tokenizer, then tasks in its tokens: RULER needles with one-token words, three distractors.
data=runs/data/memagent-tiny
[[ -f $data/values.txt ]] || "$python" -m agentic.memagent.tiny.start_model --out "$data"
for split in train:4096 dev:64; do
  file=$data/${split%:*}.jsonl
  [[ -f $file ]] || tokentrue data ruler --task niah --haystack noise --num-k 4 --bare-question \
    --key-type words --key-words "$data/keys.txt" --value-type words --value-words "$data/values.txt" \
    --tokenizer "$data/model" --budget document --length 448 --count "${split#*:}" --split "${split%:*}" --out "$file"
done
tokentrue train memagent "$@"

# At the training length and at 16 times that, two variants at a time: one core each.
evaluate() {
  tokentrue evaluate ruler --run "$out" --variants "$@" --lengths 448 --tasks 256 >"$out/evaluate-$1.log" &&
    tokentrue evaluate ruler --run "$out" --variants "$@" --lengths 7K --tasks 96 >>"$out/evaluate-$1.log"
}
echo "evaluation: untrained and trained policies on 448 and 7K tokens, a minute or two (see $out/evaluate-*.log)"
at_once "evaluate untrained empty-document" "evaluate trained"
tokentrue report "$out"
