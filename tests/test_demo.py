"""scripts/demo.sh with commands in place of those that it runs, which write down what they were given."""

import os
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "demo.sh"

PYTHON = """\
#!/usr/bin/env bash
set -eu
if [ "$1" = scripts/flower_run.py ]; then
    for setting in ${!#}; do case $setting in name=*) name=${setting#name=} ;; esac; done
    mkdir -p "$DYNSL_RUNS/20260101-000000-$name" "$DYNSL_RUNS/20260101-000009-demo"
    touch -t 202601010000 "$DYNSL_RUNS/20260101-000000-$name"
    exit "${FAILS:-0}"
fi
printf '%s\\n' "$@"
"""


def demo(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script in a checkout of its own, where another run has ended meanwhile."""
    (folder / "scripts").mkdir(parents=True)
    (folder / "venv" / "bin").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "scripts")
    for name, text in (("scripts/setup.sh", "#!/usr/bin/env bash\n"), ("venv/bin/python", PYTHON)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    command = [str(folder / "scripts" / "demo.sh")]
    environment = os.environ | {"DYNSL_VENV": str(folder / "venv")} | environment
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_its_own_run_is_shown_whatever_else_runs(tmp_path: Path) -> None:
    done = demo(tmp_path / "a checkout")
    assert done.returncode == 0, done.stderr
    *_, script, option, story, settings = done.stdout.splitlines()
    assert (script, option, settings) == ("scripts/compare_cuts.py", "--story", "fleet=demo rounds=2")
    runs = sorted((tmp_path / "a checkout" / "runs").iterdir())
    assert Path(story) == runs[0]


def test_it_ends_with_a_run_that_fails(tmp_path: Path) -> None:
    done = demo(tmp_path, FAILS="1")
    assert done.returncode == 1
    assert "compare_cuts" not in done.stdout
