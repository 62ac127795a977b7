#!/usr/bin/env bash
# Makes the table of the `laptop` preset in agentic/memagent/RESULTS.md: three seeds, the baselines, 128 tasks a cell,
# 16 at 112K. It takes hours. After an interruption, run it again: it goes on. The essays of RULER are read from
# data/essays (`tokentrue data download essays`). Options are those of run.sh, but for the folder:
#   bash agentic/memagent/table.sh
#   bash agentic/memagent/table.sh --set run.seeds=[0]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python
out=runs/memagent-laptop
tokentrue() { "$python" -m scripts.tokentrue "$@"; }
tokentrue run memagent --preset laptop "$@"
tokentrue train memagent --preset laptop --baseline rejection "$@"
tokentrue train memagent --preset laptop --baseline supervised "$@"

# One row a line: the training distribution, longer documents, then what is outside of the training distribution: more
# keys, chunks that cut needles, prose as haystack.
rows=(
  "--lengths 560 --variants untrained untrained-greedy trained rejection supervised empty-document full-context"
  "--lengths 2240 --variants untrained untrained-greedy trained rejection supervised"
  "--lengths 8960 --variants trained rejection supervised"
  "--lengths 112K --tasks 16 --seeds 0 --variants trained"
  "--lengths 560 --num-k 8 --variants untrained trained"
  "--lengths 560 --num-k 16 --variants untrained trained"
  "--lengths 560 --set memagent.align=none --variants untrained trained"
)
if [[ -d data/essays ]]; then
  rows+=("--lengths 560 --haystack essay --essays data/essays --variants untrained trained")
else
  echo "note: no data/essays here, so the row with essays is left out"
fi
# Two rows at a time, one core each. In a long document of RULER's noise few sections differ, so a larger cache still
# holds most of them.
printf '%s\n' "${rows[@]}" | xargs -P 2 -L 1 "$python" -m scripts.tokentrue evaluate ruler --run "$out" --threads 1 \
  --task niah --num-k 4 --bare-question --tasks 128 --concurrency 32 --set inference.kv_tokens=151552
tokentrue report "$out"
