#!/usr/bin/env bash
# Makes the environments of the other projects' layers, all or those that are named: runs/exactness/LAYER
#   bash benchmarks/exactness/setup.sh [LAYER ...]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
while read -r layer needs; do
  folder=runs/exactness/$layer
  if [[ -e $folder || ($# -gt 0 && " $* " != *" $layer "*) ]]; then continue; fi
  # shellcheck disable=SC2086  # several packages
  "${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/python" -m pip install -q $needs && continue
  echo "$layer: no environment with $needs" >&2
  rm -rf "$folder"
done < benchmarks/exactness/requirements.txt
