# Sourced by the scripts of the methods: `prepare_python [options of setup.sh]` goes to the root and leaves `python`.
prepare_python() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  # slime's container has a Python with everything; anywhere else .venv is made.
  python=python3
  python3 -c 'import slime' 2>/dev/null || { bash scripts/setup.sh "$@"; python=.venv/bin/python; }
  # OpenMP's idle threads spin by default, which makes torch 2.5 to 15 times slower when anything else needs their core.
  export OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false
}
