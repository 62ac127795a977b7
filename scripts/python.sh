# Functions that run.sh and evaluate.sh of every method source.

# prepare_python [options of setup.sh]: go to the repository's root, make .venv where it is needed, and set `python`.
prepare_python() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  # The Python of slime's and vime's containers has all packages. Anywhere else they are in .venv.
  python=python3
  if ! python3 -c 'import slime' 2>/dev/null && ! python3 -c 'import vime' 2>/dev/null; then
    bash scripts/setup.sh "$@"
    python=.venv/bin/python
  fi
  export TOKENIZERS_PARALLELISM=false
}

# prepare_run METHOD [options of run.sh]: the same, and set `experiment` to the preset and `out` to the run folder if the
# options ask for a whole experiment. Otherwise both are empty: then there is a training alone, a dry run or help.
prepare_run() {
  experiment= out=
  if [[ " $* " =~ ' '(--help|-h|--dry-run)' ' ]]; then
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    # These must not install anything.
    [[ -x .venv/bin/python ]] && python=.venv/bin/python || python=python3
    [[ $* == *--dry-run* ]] || sed -n '2,/^set /s/^# *//p' "agentic/$1/run.sh"
  else
    prepare_python
    local words
    words=$("$python" -m scripts.train "$@")
    read -r experiment out <<<"$words"
  fi
}

tokentrue() { "$python" -m scripts.tokentrue "$@"; }

# at_once COMMAND ...: run commands at the same time. If one fails, show the logs of all evaluations.
at_once() {
  local command pid pids=() failed=
  for command; do
    $command &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  [[ ! $failed ]] || { cat "$out"/evaluate-*.log >&2 && return 1; }
}
