#!/usr/bin/env bash
# Evaluate any checkpoint on RULER or HotpotQA, from 7K to 448K tokens and beyond; --help lists what there is:
#   bash agentic/memagent/evaluate.sh --run runs/memagent-tiny
#   bash agentic/memagent/evaluate.sh --model BytedTsinghua-SIA/RL-MemoryAgent-7B --serve sglang --serve-python PYTHON
# The last one starts a server, by the Python of an environment that has SGLang, and stops it; for one that runs already,
# give --policy-url http://host:30000.
# A call that was interrupted goes on where it stopped when it is given again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m benchmarks.ruler.evaluate "$@"
