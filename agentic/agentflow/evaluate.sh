#!/usr/bin/env bash
# Evaluate any checkpoint on the AIME, as a single call and as AgentFlow's planner; --help lists the options:
#   bash agentic/agentflow/evaluate.sh --model CHECKPOINT --untrained Qwen/Qwen2.5-7B-Instruct --preset seed --k 64
#   bash agentic/agentflow/evaluate.sh --model CHECKPOINT --preset seed --serve sglang --serve-python PYTHON
# The last command starts a server, with the Python of an environment that has SGLang, and stops it at the end. For a
# server that runs already, give --policy-url http://host:30000. The preset names the frozen roles; name others with
# --set roles.executor=http://host:30001.
# A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m scripts.tokentrue evaluate aime "$@"
