"""Who may import what: the design's rules, read from the source."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dynsl_app"

ONLY = {
    "flwr": ("server_app", "client_app", "flower_messages", "flower_control", "local_grid"),
    "flwr_datasets": ("data",),
    "ray": (),
    "simpy": ("testbed",),
    "grpc": ("wire",),
    "hydra": ("compose", "resume", "cli", "sweep"),
    "wandb": ("telemetry.sinks",),
    "rich": ("telemetry.sinks", "report", "cli", "plan_cli", "plan_table", "profile_table", "profile_cli"),
    "dynsl_app.cli": (),
    "dynsl_app.sweep": ("cli",),
    "dynsl_app.plan_cli": (),
    "dynsl_app.testbed": ("testbed", "cli"),
    "dynsl_app.report": ("report", "cli"),
}
"""A library or part of the package, and the only parts that may import it."""

NEVER = (
    ("client", "dynsl_app.server"),
    ("server", "dynsl_app.client"),
    # The client gets its settings inside its order; Hydra's state is global, and clients may be threads.
    ("client", "hydra"),
    ("client_app", "hydra"),
    # Allocators see costs, never tensors, sockets or clocks.
    ("allocation", "torch"),
    ("allocation", "grpc"),
    ("allocation", "socket"),
    ("allocation", "time"),
    ("plan", "torch"),
)
"""Parts, and what they may not import, nor anything of the package that they import."""


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def modules(package: Path) -> dict[str, set[str]]:
    """What each module of a package imports, anywhere in it; modules by full name."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        name = ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        package_of = name if file.name == "__init__.py" else name.rpartition(".")[0]
        imported = set()
        for node in ast.walk(ast.parse(file.read_text(), str(file))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parents = package_of.split(".")[: len(package_of.split(".")) - node.level + 1]
                    base = ".".join([*parents, *([base] if base else [])])
                imported |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        found[name] = imported
    return found


def reach(start: str, graph: dict[str, set[str]]) -> dict[str, str]:
    """Everything that a module imports, directly or through the package, and the chain of modules that leads there."""
    chains = {start: start}
    todo = [start]
    while todo:
        module = todo.pop()
        for imported in sorted(graph[module]):
            if imported not in chains:
                chains[imported] = f"{chains[module]} -> {imported}"
                if imported in graph:
                    todo.append(imported)
    del chains[start]
    return chains


def violations(package: Path) -> list[str]:
    graph = modules(package)
    root = package.name
    broken = []
    for target, allowed in ONLY.items():
        for module, imported in graph.items():
            free = within(module, target) or any(within(module, f"{root}.{part}") for part in allowed)
            if not free and any(within(name, target) for name in imported):
                broken.append(f"{module} imports {target}, which only {allowed or 'nobody'} may")
    for part, target in NEVER:
        for module in graph:
            if within(module, f"{root}.{part}"):
                chains = [chain for name, chain in reach(module, graph).items() if within(name, target)]
                broken += [f"{root}.{part} must not import {target}: {chain}" for chain in chains[:1]]
    return broken


def test_the_package_keeps_the_rules():
    assert violations(PACKAGE) == []


def test_all_modules_are_read():
    graph = modules(PACKAGE)
    assert {"dynsl_app", "dynsl_app.plan", "dynsl_app.client.epoch", "dynsl_app.server.rounds"} <= graph.keys()
    assert "dynsl_app.errors.SettingsError" in graph["dynsl_app.plan"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("server/rounds", "from flwr.serverapp import Grid"),
        ("server/rounds", "import dynsl_app.client.epoch"),
        ("server/rounds", "from dynsl_app import client"),
        ("server/rounds", "from ..client import epoch"),
        ("client/epoch", "def lazy():\n    from dynsl_app.server.rounds import run"),
        ("client/epoch", "import dynsl_app.between\n"),
        ("client/epoch", "import hydra"),
        ("allocation/solver", "import torch.nn"),
        ("allocation/solver", "import time"),
        ("plan", "from torch import Tensor"),
        ("data/load", "import simpy"),
        ("server/rounds", "from dynsl_app.cli import main"),
        ("server/rounds", "from dynsl_app.report import figures"),
        ("server/rounds", "import wandb"),
        ("server/rounds", "import rich.table"),
    ],
)
def test_a_violation_is_seen(tmp_path, module, source):
    package = tmp_path / "dynsl_app"
    files = {"__init__": "", "between": "import dynsl_app.server.rounds", "server/rounds": "", "client/epoch": ""}
    for name, text in {**files, module: source}.items():
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert violations(package)


def test_allowed_imports_are_not_violations(tmp_path):
    files = {
        "__init__": "",
        "server_app": "import flwr",
        "data/partition": "import flwr_datasets",
        "testbed/simulate": "import simpy",
        "client/epoch": "import torch, time\nfrom dynsl_app.plan import Plan",
        "plan": "import clientele, torchless",
    }
    for name, text in files.items():
        file = tmp_path / "dynsl_app" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert violations(tmp_path / "dynsl_app") == []
