#!/usr/bin/env bash
# Make the Python environment: the pins of requirements.txt (all extras) and this checkout, editable.
# Does nothing when the pins are those installed and this checkout is the one installed.
#
#   DYNSL_VENV   where the environment is (default: .venv in this checkout)
#   PYTHON       the interpreter to make it with (default: the first of 3.11, 3.12, 3.13 on the PATH)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${DYNSL_VENV:-.venv}
python=$venv/bin/python

die() {
    echo "error: $*" >&2
    exit 1
}

suitable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        suitable "$PYTHON" || die "PYTHON=$PYTHON is no Python 3.11 to 3.13 with the modules venv and ensurepip"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "found no Python 3.11 to 3.13 with the modules venv and ensurepip (on Debian: apt install python3-venv);" \
        "install one, or name it: PYTHON=/path/to/python3.11 $0"
}

if [[ ! -e $python ]]; then
    base=$(find_python)
    echo "Making $venv with $("$base" --version)"
    "$base" -m venv "$venv"
fi

outdated() {
    # -I: what is installed counts, not what lies in this folder.
    "$python" -I scripts/outdated.py "$@" || die "cannot tell what is installed in $venv; delete it and try again"
}

todo=$(outdated)
[[ -n $todo ]] || exit 0
suitable "$python" || die "$python is no Python 3.11 to 3.13; delete $venv and try again"

if [[ $todo == *pins* ]]; then
    echo "Installing requirements.txt into $venv (the first time some gigabytes, for PyTorch)"
    "$python" -m pip install --disable-pip-version-check -r requirements.txt ||
        die "pip could not install requirements.txt into $venv; see its message above"
fi
if [[ $todo == *checkout* ]]; then
    echo "Installing this checkout into $venv"
    # The build back end is among the pins, so this needs no network.
    "$python" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable . ||
        die "pip could not install this checkout into $venv; see its message above"
    outdated --record
fi
todo=$(outdated)
[[ -z $todo ]] || die "$venv is still not up to date ($todo); delete it and try again"
echo "$venv is ready"
