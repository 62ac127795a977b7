#!/usr/bin/env bash
# Makes the table of the `laptop` preset in agentic/memagent/README.md: three seeds, the baselines, 128 tasks a cell.
# It takes hours. After an interruption, run it again: it goes on. The essays of RULER (PaulGrahamEssays/*.txt of
# gkamradt/LLMTest_NeedleInAHaystack) are read from data/essays. Options are those of run.sh:
#   bash agentic/memagent/laptop/table.sh
#   bash agentic/memagent/laptop/table.sh --set run.seeds=[0]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/python.sh"
prepare_run memagent --preset laptop "$@"
bash agentic/memagent/run.sh --preset laptop "$@"
tokentrue train memagent --preset laptop --baseline rejection "$@"
tokentrue train memagent --preset laptop --baseline supervised "$@"

# evaluate VARIANTS [options]: tasks of the training distribution, but for what the options change.
evaluate() {
  local variants=$1
  shift
  tokentrue evaluate ruler --run "$out" --variants $variants --task niah --num-k 4 --bare-question "$@"
}
start="untrained untrained-greedy"
evaluate "$start trained rejection supervised empty-document full-context" --lengths 560 --tasks 128
evaluate "$start trained rejection supervised" --lengths 2240 --tasks 128
evaluate "trained supervised" --lengths 8960 --tasks 128
evaluate "trained" --lengths 112K --tasks 16 --seeds 0
# Outside of the training distribution: prose as haystack, more keys, chunks that cut needles.
if [[ -d data/essays ]]; then
  evaluate "untrained trained" --lengths 560 --tasks 128 --haystack essay --essays data/essays
else
  echo "note: no data/essays here, so the row with essays is left out"
fi
for keys in 8 16; do evaluate "untrained trained" --lengths 560 --tasks 128 --num-k "$keys"; done
evaluate "untrained trained" --lengths 560 --tasks 128 --set memagent.align=none
tokentrue report "$out"
