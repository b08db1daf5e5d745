#!/usr/bin/env bash
# Trains a small CNN on real handwritten digits through Flower's simulation, on four unlike devices that this machine
# plays (conf/fleet/demo.yaml), cut where it suits each; then measures the same with every uniform cut, and tells.
# Ends with 0 only if all runs completed. Takes about two minutes on two cores; the first time, setting up comes before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./scripts/setup.sh
python="${DYNSL_VENV:-.venv}/bin/python"

export DYNSL_RUNS="$PWD/runs"
name="demo-$$"    # of this demo alone: others may run meanwhile
"$python" scripts/flower_run.py simulation --clients 4 "name=$name fleet=demo rounds=3"
story=$(ls -td "$DYNSL_RUNS"/*-"$name"/ | head -n 1)

echo
echo "Epoch times on the same four devices, without Flower's processes: dynsl, and every uniform cut"
exec "$python" scripts/compare_cuts.py --story "$story" "fleet=demo rounds=2"
