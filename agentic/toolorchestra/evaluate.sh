#!/usr/bin/env bash
# Evaluate any checkpoint: on the real tau2-bench (the first word is tau2), or on questions: held-out ones, FRAMES, HLE.
#   .venv/bin/tokentrue serve services agentic/toolorchestra/services/tiny.yaml \
#       --logs runs/data/toolorchestra-tiny/services -- bash agentic/toolorchestra/evaluate.sh --run runs/toolorchestra-tiny
#   bash agentic/toolorchestra/evaluate.sh --model CHECKPOINT --policy-url http://HOST:30000 --data data/frames.jsonl \
#       --set toolorchestra.environment=null
#   bash agentic/toolorchestra/evaluate.sh tau2 --protocol standard --model CHECKPOINT --policy-url http://HOST:30000 \
#       --tau2-python TAU2/bin/python --tau2-data TAU2_DATA --user NAME
# --help lists the options. RESULTS.md says what must be there first (data, corpus, experts), and benchmarks/tau2/README.md
# says it for tau2-bench. A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
if [[ "${1:-}" == tau2 ]]; then
    shift
    exec "$python" -m scripts.tokentrue evaluate tau2 "$@"
fi
exec "$python" -m scripts.tokentrue evaluate heldout toolorchestra "$@"
