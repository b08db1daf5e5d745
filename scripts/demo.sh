#!/usr/bin/env bash
# Trains a small CNN on real handwritten digits through Flower's simulation, split between four clients and the
# server; ends with a summary, and with 0 only if the run completed. Takes about two minutes on two cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./scripts/setup.sh
python="${DYNSL_VENV:-.venv}/bin/python"

export DYNSL_RUNS="$PWD/runs"
exec "$python" scripts/flower_run.py simulation --clients 4 \
    "name=demo data=digits model=cnn algorithm=splitfed_v1 rounds=4"
