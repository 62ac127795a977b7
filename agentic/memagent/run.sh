#!/usr/bin/env bash
# MemAgent from nothing to a report: data, warm start and GRPO, evaluation. Run again after an interruption: it goes on.
#   bash agentic/memagent/run.sh                                  # preset tiny: two CPU cores, minutes, offline
#   bash agentic/memagent/run.sh --preset paper --set model.path=/models/Qwen2.5-7B-Instruct
#   bash agentic/memagent/run.sh --dry-run                        # print the resolved recipe
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash scripts/setup.sh
# OpenMP's idle threads spin by default, which makes torch 2.5 to 15 times slower when anything else needs their core.
export OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false
python=.venv/bin/python

preset=tiny out= arguments=() dry=
while (($#)); do
  case $1 in
    --preset) preset=$2 && shift ;;
    --out) out=$2 && shift ;;
    --dry-run) dry=1 && arguments+=("$1") ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
out=${out:-runs/memagent-$(basename "$preset" .yaml)}
train() { "$python" -m agentic.memagent.train --preset "$preset" --out "$out" "${arguments[@]}"; }

if [[ $dry || $preset != tiny ]]; then
  train
  exit
fi

data=runs/data/memagent-tiny
"$python" -m agentic.memagent.tiny --out "$data"
for split in train:4096 dev:64; do
  file=$data/${split%:*}.jsonl
  [[ -f $file ]] || "$python" -m benchmarks.ruler.generate @agentic/memagent/presets/tiny.task \
    --tokenizer "$data/model" --length 448 --count "${split#*:}" --split "${split%:*}" --out "$file"
done
train
"$python" -m benchmarks.ruler.evaluate --run "$out" @agentic/memagent/presets/tiny.task \
  --arms trained untrained empty-document --lengths 448 7168 --tasks 256
