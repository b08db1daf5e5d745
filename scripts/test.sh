#!/usr/bin/env bash
# Set up what is needed, then lint, check types and test.
# Arguments go to pytest; --full adds the whole matrix of models, cuts and optimizers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
bin=${DYNSL_VENV:-.venv}/bin

"$bin/ruff" check dynsl_app tests scripts
"$bin/ruff" format --check dynsl_app tests scripts
"$bin/mypy" --strict dynsl_app
exec "$bin/python" -m pytest "$@"
