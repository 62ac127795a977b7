# What every agentic/<method>/run.sh shares: it sets `method` and sources this. Reads the options, and ends here with
# --help, --dry-run, --engine slime or a preset other than tiny; for tiny it leaves `python`, `out` and the functions
# `train` and `at_once`.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"

# Help must not install anything: the options of training follow where they can be had.
if [[ " $* " =~ ' '(--help|-h)' ' ]]; then
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  sed -n '2,/^set /s/^# *//p' "agentic/$method/run.sh"
  for python in .venv/bin/python python3; do
    "$python" -m core.engine.train "$method" --help 2>/dev/null && break
  done
  exit 0
fi
prepare_python

preset='' out='' dry='' engine=embedded arguments=()
while (($#)); do
  case $1 in
    --preset=* | --out=* | --engine=*)
      option=${1%%=*} value=${1#*=}
      shift
      set -- "$option" "$value" "$@"
      continue
      ;;
    --preset | --out | --engine)
      (($# > 1)) || { echo "error: $1 needs a value" >&2 && exit 2; }
      case $1 in --preset) preset=$2 ;; --out) out=$2 ;; *) engine=$2 ;; esac
      shift
      ;;
    --dry-run) dry=1 && arguments+=("$1") ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
[[ $preset ]] || case $engine in slime) preset=seed ;; *) preset=tiny ;; esac
out=${out:-runs/$method-$(basename "$preset" .yaml)}
case $engine in
  embedded) train() { "$python" -m core.engine.train "$method" --preset "$preset" --out "$out" ${arguments[@]+"${arguments[@]}"}; } ;;
  slime) exec "$python" -m core.slime.launch "$method" --preset "$preset" --out "$out" ${arguments[@]+"${arguments[@]}"} ;;
  *) echo "error: --engine is embedded or slime, not $engine" >&2 && exit 2 ;;
esac

# Each argument is a command; all run at the same time. If one fails, the logs of all evaluations are shown.
at_once() {
  local command pid pids=() failed=
  for command; do
    $command &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  [[ ! $failed ]] || { cat "$out"/evaluate-*.log >&2 && exit 1; }
}

# Presets other than tiny bring their own data and are evaluated by evaluate.sh.
if [[ $dry || $preset != tiny ]]; then
  train
  [[ $dry ]] || "$python" -m core.report "$out"
  exit
fi
