# Functions that run.sh and evaluate.sh of every method source.

# prepare_python [options of setup.sh]: go to the repository's root, make .venv where it is needed, and set `python`.
prepare_python() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  # The Python of slime's and vime's containers has all packages, and one with verl where tokentrue was installed beside
  # it. Anywhere else they are in .venv.
  python=python3
  if ! python3 -c 'import slime' 2>/dev/null && ! python3 -c 'import vime' 2>/dev/null \
    && ! python3 -c 'from importlib.metadata import version; version("verl"), version("tokentrue")' 2>/dev/null; then
    bash scripts/setup.sh "$@"
    python=.venv/bin/python
  fi
  export TOKENIZERS_PARALLELISM=false
}

# run_method METHOD [options]: `tokentrue run`. Help, which begins with the comment of run.sh, installs nothing.
run_method() {
  if [[ " $* " =~ ' '(--help|-h)' ' ]]; then
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    [[ -x .venv/bin/python ]] && python=.venv/bin/python || python=python3
    sed -n '2,/^set /s/^# *//p' "agentic/$1/run.sh"
  else
    prepare_python
  fi
  exec "$python" -m scripts.tokentrue run "$@"
}
