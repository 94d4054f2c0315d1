#!/usr/bin/env bash
# Starts a run in several processes of this machine; see big_retrieval/launch.py.
#
#   launch/local.sh --processes=2 --devices=4 -- --config=configs/quickstart.py --workdir=runs/two
#
# PYTHON chooses the interpreter; otherwise that of .venv, otherwise the first python3.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
  python=python3
  [[ ! -x "$root/.venv/bin/python" ]] || python="$root/.venv/bin/python"
fi
# From anywhere: relative paths in the command stay those of the caller.
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m big_retrieval.launch "$@"
