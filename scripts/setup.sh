#!/usr/bin/env bash
# Makes .venv with the pinned requirements and the command `tokentrue`. Does nothing, in a few milliseconds, when they are
# already there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'EOF'
usage: bash scripts/setup.sh [--no-dev] [--python PYTHON] [--torch-index URL]

  --no-dev           leave out what only tests and checks need
  --python PYTHON    interpreter that .venv is made with (default: python3; 3.11 or newer)
  --torch-index URL  a further package index for torch. PyPI's torch for Linux brings several GB of CUDA libraries; for a
                     CPU build give https://download.pytorch.org/whl/cpu
--python and --torch-index take effect when .venv is made; to change them later, delete .venv first.
EOF
}

fail() {
  echo "setup: $*" >&2
  exit 1
}

needs_value() { (($# > 1)) || fail "$1 needs a value"; }

requirements=requirements-dev.txt
python=python3
torch_index=
while (($#)); do
  case $1 in
    --no-dev) requirements=requirements.txt ;;
    --python) needs_value "$@" && python=$2 && shift ;;
    --torch-index) needs_value "$@" && torch_index=$2 && shift ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && fail "unknown option $1" ;;
  esac
  shift
done

# The stamp holds what .venv was installed from, as plain text, so that a diff shows what changed: its Python, this folder
# (the command `tokentrue` imports from it) and every pin.
stamp=.venv/.installed
pins() { .venv/bin/python -V && pwd && cat pyproject.toml requirements.txt "$@"; }
up_to_date() {
  [[ -f $stamp && -x .venv/bin/python ]] || return 1
  local installed
  installed=$(<"$stamp")
  # A .venv with the development tools is also right for --no-dev.
  [[ $installed == "$(pins requirements-dev.txt)" ]] ||
    [[ $requirements == requirements.txt && $installed == "$(pins)" ]]
}

up_to_date && exit

# Two runs at once: the second waits for the first and then finds the work done. (macOS has no flock.)
if command -v flock >/dev/null; then
  exec 9<.
  flock --nonblock 9 || { echo "setup: another setup is running here, waiting for it" && flock 9; }
  up_to_date && exit
fi

modern() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
if ! modern .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  command -v "$python" >/dev/null || fail "$python not found; install Python 3.11 or name one: --python PYTHON"
  modern "$python" || fail "$python is $("$python" -V 2>&1); Python 3.11 or newer is needed: --python PYTHON"
  "$python" -m venv --clear .venv || fail "cannot make .venv (on Debian and Ubuntu: apt install python3-venv)"
fi

rm -f "$stamp"
if [[ $requirements == requirements.txt ]]; then installing=$(pins); else installing=$(pins "$requirements"); fi
pip_install() {
  .venv/bin/python -m pip install -qq --no-input --disable-pip-version-check "$@" ||
    fail "pip failed (see above); nothing is marked as installed, run scripts/setup.sh again to go on"
}

echo "setup: installing $requirements into .venv (into an empty one: about 3 GB, a minute or two)"
pip_install ${torch_index:+--extra-index-url "$torch_index"} "$(grep '^torch==' requirements.txt)"
pip_install -r "$requirements"
# torch has brought the setuptools that this needs; an isolated build would download another.
pip_install --no-deps --no-build-isolation --editable .
echo "$installing" >"$stamp.new"
mv "$stamp.new" "$stamp"
if compgen -G '.venv/lib/python*/site-packages/nvidia' >/dev/null; then
  echo "setup: torch came with its CUDA libraries; for a CPU build see scripts/setup.sh --help"
fi
echo "setup: done in ${SECONDS} s"
