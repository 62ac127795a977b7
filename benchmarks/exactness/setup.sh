#!/usr/bin/env bash
# Makes the environments of the other projects' layers, all or those that are named: runs/exactness/LAYER
#   bash benchmarks/exactness/setup.sh [LAYER ...]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
failed=0
for layer in "$@"; do
  if ! grep -q "^$layer " benchmarks/exactness/requirements.txt; then echo "there is no layer $layer" >&2; failed=1; fi
done
while read -r layer needs; do
  folder=runs/exactness/$layer
  if [[ -e $folder/complete || ($# -gt 0 && " $* " != *" $layer "*) ]]; then continue; fi
  rm -rf "$folder"  # what a kill may have left
  # shellcheck disable=SC2086  # several packages
  "${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/python" -m pip install -q $needs \
    && touch "$folder/complete" && continue
  echo "$layer: no environment with $needs" >&2
  rm -rf "$folder"
  failed=1
done < benchmarks/exactness/requirements.txt
exit $failed
