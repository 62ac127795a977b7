#!/usr/bin/env bash
# Evaluate any checkpoint on the AIME, as a single call and as AgentFlow's planner; --help lists what there is:
#   bash agentic/agentflow/evaluate.sh --model CHECKPOINT --baseline Qwen/Qwen2.5-7B-Instruct --preset seed --k 64
#   bash agentic/agentflow/evaluate.sh --model CHECKPOINT --preset seed --serve sglang --serve-python PYTHON
# The last one starts a server, by the Python of an environment that has SGLang, and stops it; for one that runs already,
# give --policy-url http://host:30000. The frozen roles are the preset's: --set roles.executor=http://host:30001
# A call that was interrupted goes on where it stopped when it is given again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m benchmarks.aime.evaluate "$@"
