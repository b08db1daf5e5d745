"""One run as a table: who is slow, and which blocks each client held when."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dynsl_app.errors import SettingsError
from dynsl_app.fleet import Change, Fleet
from dynsl_app.report.run import Client, Run


def story(run: Run) -> RenderableType:
    """The clients of a run, their cuts over time, and the run's numbers."""
    fleet = run.settings.fleet
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in ("client", "compute", "Mbit/s up, down"):
        table.add_column(heading)
    table.add_column("ms a batch", justify="right", no_wrap=True)
    table.add_column("blocks held, round by round", overflow="fold")
    for client in run.clients:
        table.add_row(*_device(fleet, client.id), _ms(client), cuts_over_time(client))
    settings = run.settings
    head = f"{settings.algorithm.name}: {settings.model.label} of {run.blocks} blocks on {settings.data.name}"
    accuracy = "unknown" if run.accuracy is None else f"{run.accuracy:.4f}"
    epochs = " ".join(f"{seconds:.1f}" for seconds in run.epoch_s)
    return Group(
        Text(f"{head}, {len(run.clients)} clients"),
        table,
        Text(
            f"ms a batch: medians, at first → at last. 1 →{run.blocks}@7: 1 block, from batch 7 on {run.blocks} (all)."
        ),
        Text(_slowest(run)),
        Text(f"{run.moves} moves in mid-epoch. Epochs: {epochs} s. Accuracy on held-out data: {accuracy}."),
        Text(f"Run folder: {run.path}", overflow="fold"),
    )


def cuts_over_time(client: Client) -> str:
    """``3 →1@5 · 1``: in the first round 3 blocks, from batch 5 on 1; in the second 1."""
    rounds = []
    for round_, cut in client.starts.items():
        moves = (f" →{move.after}@{move.batch}" for move in client.moves if move.round == round_)
        rounds.append(f"{cut}{''.join(moves)}")
    return " · ".join(rounds)


def _slowest(run: Run) -> str:
    """Who took longest for a batch, before anything moved and at the end."""
    times = [(client.first_s, client.last_s, client.id) for client in run.clients]
    firsts = [(first_s, client) for first_s, _, client in times if first_s is not None]
    lasts = [(last_s, client) for _, last_s, client in times if last_s is not None]
    if not firsts or not lasts:
        return "The run's events do not say who is slowest (events.detail=round)."
    names = [_device(run.settings.fleet, max(each)[1])[0] for each in (firsts, lasts)]
    return f"Slowest at first: {names[0]}; at last: {names[1]}."


def _ms(client: Client) -> str:
    times = ["–" if seconds is None else f"{1e3 * seconds:.0f}" for seconds in (client.first_s, client.last_s)]
    return " → ".join(times)


def _device(fleet: Fleet, client: int) -> tuple[str, str, str]:
    """Name, compute and link of the device that a client plays, in words."""
    if not fleet.size:
        return str(client), "as it is", "as it is"
    try:
        device = fleet.device(client)
    except SettingsError:
        return str(client), "unknown", "unknown"
    own = [change for change in fleet.changes if client == change.client or device.name == change.device]
    compute = "".join(f", ×{change.compute:g} {_when(change)}" for change in own if change.compute is not None)
    link = "".join(f", ×{change.link:g} {_when(change)}" for change in own if change.link is not None)
    rates = ", ".join("–" if rate is None else f"{8e-6 * rate:g}" for rate in (device.up_Bps, device.down_Bps))
    return f"{client} {device.name}", f"{fleet.compute(device):g}× slower{compute}", f"{rates}{link}"


def _when(change: Change) -> str:
    return f"at {change.at_s:g} s" if change.at_s is not None else f"at batch {change.at_batch}"
