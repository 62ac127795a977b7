#!/usr/bin/env bash
# Evaluate any checkpoint on RULER or HotpotQA, from 7K to 448K tokens and beyond; --help lists the options:
#   bash agentic/memagent/evaluate.sh --run runs/memagent-tiny
#   bash agentic/memagent/evaluate.sh --model BytedTsinghua-SIA/RL-MemoryAgent-7B --serve sglang --serve-python PYTHON
# The last command starts a server, with the Python of an environment that has SGLang, and stops it at the end. For a
# server that runs already, give --policy-url http://host:30000.
# A command that was interrupted continues where it stopped when it is run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/python.sh"
prepare_python --no-dev
exec "$python" -m scripts.tokentrue evaluate ruler "$@"
