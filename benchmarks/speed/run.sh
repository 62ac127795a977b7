#!/usr/bin/env bash
# Side-by-side speed in one run: bash benchmarks/speed/run.sh [--quick] [options of `tokentrue speed engines --help`]
# TRL goes into benchmarks/speed/.venv, which sees the packages of .venv, so that the repository's own stays as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bash scripts/setup.sh --no-dev
here=benchmarks/speed
if ! cmp -s $here/requirements.txt $here/.venv/.installed; then
  .venv/bin/python -m venv --clear $here/.venv
  base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  purelib=$($here/.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$base" >"$purelib/base.pth"
  $here/.venv/bin/python -m pip install -qq --no-input --disable-pip-version-check -r $here/requirements.txt
  cp $here/requirements.txt $here/.venv/.installed
fi

# Threads spin for a moment while they wait, as in `tokentrue`.
export GOMP_SPINCOUNT=5000 HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1
exec $here/.venv/bin/python -m benchmarks.speed "$@"
