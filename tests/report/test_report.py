"""Tables of finished runs, from folders whose numbers are known."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.compose import compose
from dynsl_app.errors import SettingsError
from dynsl_app.report.__main__ import main
from dynsl_app.report.comparison import compare
from dynsl_app.report.run import Client, Move, read_run
from dynsl_app.report.story import cuts_over_time
from dynsl_app.telemetry.events import EventStream
from dynsl_app.telemetry.sinks.jsonl import JsonlSink
from dynsl_app.testbed.run import run_testbed
from dynsl_app.validate import to_yaml

FLEET = """
devices:
  - {name: quick, compute: 1}
  - {name: pi, compute: 9, up_Bps: 0.5e6, down_Bps: 2.0e6}
  - {name: phone, compute: 2.5, up_Bps: 1.0e6}
changes:
  - {at_batch: 7, device: pi, compute: 3}
  - {at_s: 1.5, client: 2, link: 0.1}
"""
CUTS = ({0: 3, 1: 3, 2: 3}, {0: 5, 1: 1, 2: 3})
"""At the start of each round."""
MOVES = {(1, 1, 3): (3, 2), (1, 1, 5): (2, 1), (2, 2, 2): (3, 5)}
"""(round, client, batch) to cuts before and after."""
BATCH_S = {0: {1: 0.1, 2: 0.1}, 1: {1: 0.75, 2: 0.25}, 2: {1: 0.2, 2: 0.5}}
"""Seconds from batch to batch, by client and round."""

Record = Callable[..., Path]


class _Tape:
    """An event stream whose clock is set by hand."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self._stream = EventStream([JsonlSink(path)], clock=lambda: self.now)

    def emit(self, event: str, at: float, **fields: Any) -> None:
        self.now = at
        self._stream.emit(event, **fields)

    def close(self) -> None:
        self._stream.close()


def _happenings() -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Two rounds of six batches; client 0 is fully local in the second; a move's own batch takes 50 s."""
    for round_, cuts in enumerate(CUTS, start=1):
        start = 1000.0 * round_
        fields = {"clients": list(cuts), "cuts": {str(client): cut for client, cut in cuts.items()}}
        yield start, "round_start", {"round": round_, "boundary": 5, "heads": 0, **fields}
        for client in cuts:
            t = start + 1
            for batch in range(6):
                moved = MOVES.get((round_, client, batch))
                t += 50 if moved else BATCH_S[client][round_]
                if moved:
                    fields = {"client": client, "batch": batch, "cut_before": moved[0], "cut": moved[1]}
                    yield t, "move", {"round": round_, "generation": 1, "bytes_up": 9, **fields}
                if cuts[client] == 5:
                    yield t, "progress", {"round": round_, "client": client, "batch": batch, "samples": 8}
                else:
                    yield t, "step", {"round": round_, "head": None, "members": [[client, batch, 8]]}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Writes the folder of a run with these overrides and numbers."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)

    def write(name: str, *overrides: str, epoch_s: tuple[float, ...] = (4.0, 2.0), weights: bytes = b"w") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        settings = compose([f"fleet.file={fleet}", "rounds=2", *overrides])
        (folder / "config.yaml").write_text(to_yaml(settings))
        tape = _Tape(folder / "events.jsonl")
        tape.emit("run_start", 0.0, blocks=5)
        cut = settings.algorithm.cut
        for t, event, fields in sorted(_happenings(), key=lambda happening: happening[0]):
            if cut is None:
                tape.emit(event, t, **fields)
            elif event == "round_start":
                tape.emit(event, t, **fields | {"cuts": dict.fromkeys(fields["cuts"], cut)})
        tape.close()
        summary: Mapping[str, Any] = {"accuracy": 0.975, "epoch_s": epoch_s, "moves": 0 if cut else 3}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "model.safetensors").write_bytes(weights)
        return folder

    return write


def test_a_run_is_read_back(record: Record) -> None:
    run = read_run(record("adaptive"))
    assert (run.blocks, run.accuracy, run.epoch_s, run.mean_epoch_s, run.moves) == (5, 0.975, (4.0, 2.0), 3.0, 3)
    zero, one, two = run.clients
    assert (zero.id, zero.starts, zero.moves) == (0, {1: 3, 2: 5}, ())
    assert one.moves == (Move(1, 3, 3, 2), Move(1, 5, 2, 1))
    assert two.moves == (Move(2, 2, 3, 5),)
    # What a move takes is nobody's pace, nor are the pauses between rounds.
    assert (zero.first_s, zero.last_s) == pytest.approx((0.1, 0.1))
    assert (one.first_s, one.last_s) == pytest.approx((0.75, 0.25))
    assert (two.first_s, two.last_s) == pytest.approx((0.2, 0.5))


def test_cuts_over_time_in_one_line(record: Record) -> None:
    lines = [cuts_over_time(client) for client in read_run(record("adaptive")).clients]
    assert lines == ["3 · 5", "3 →2@3 →1@5 · 1", "3 · 3 →5@2"]


def test_a_client_that_sat_out_a_round() -> None:
    assert cuts_over_time(Client(4, {1: 2, 3: 1}, (Move(3, 9, 1, 2),), None, None)) == "2 · 1 →2@9"


def test_the_story_fits_a_screen_and_tells_who_is_slow(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record("adaptive")
    assert main([str(folder)]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert "Slowest at first: 1 pi; at last: 2 phone." in text
    (pi,) = [line for line in lines if line.startswith(" 1 pi")]
    assert "9× slower, ×3 at batch 7" in pi
    assert "4, 16" in pi
    assert "750 → 250" in pi
    assert "3 →2@3 →1@5 · 1" in pi
    (phone,) = [line for line in lines if line.startswith(" 2 phone")]
    assert "8, –, ×0.1 at 1.5 s" in phone
    assert "3 moves in mid-epoch. Epochs: 4.0 2.0 s. Accuracy on held-out data: 0.9750." in text
    assert str(folder) in text.replace("\n", "")


def test_without_events_of_batches_nobody_is_called_slow(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record("adaptive")
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"step"' not in line and '"progress"' not in line]
    (folder / "events.jsonl").write_text("".join(kept))
    assert main([str(folder)]) == 0
    text = capsys.readouterr().out
    assert "– → –" in text
    assert "events.detail=round" in text
    assert "3 →2@3 →1@5 · 1" in text


FIXED = {1: (9.0, 7.0), 2: (4.0, 3.0), 3: (6.0, 6.0)}


def test_epoch_times_beside_every_fixed_cut(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    adaptive = record("adaptive")
    fixed = [
        record(f"cut-{cut}", "algorithm=uniform", f"algorithm.cut={cut}", epoch_s=epoch_s)
        for cut, epoch_s in reversed(FIXED.items())
    ]
    compared = compare([read_run(folder) for folder in (*fixed, adaptive)])
    assert [run.mean_epoch_s for run in compared.fixed] == [8.0, 3.5, 6.0]
    assert (compared.best.mean_epoch_s, compared.mean_s) == pytest.approx((3.5, 17.5 / 3))
    assert compared.gain(3.5) == pytest.approx(1 - 3.0 / 3.5)
    assert compared.gain(2.0) == pytest.approx(-0.5)
    assert compared.same_model
    assert main([str(adaptive), "--compare", *map(str, fixed), str(adaptive)]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "all at 1 8.00 9.00 7.00 0.9750 62 %" in rows
    assert "all at 2 3.50 4.00 3.00 0.9750 14 %" in rows
    assert "mean of these 5.83 49 %" in rows
    assert "best of these 3.50 14 %" in rows
    assert "dynsl 3.00 4.00 2.00 0.9750" in rows
    assert "All runs end with the same weights, bit for bit." in rows


def test_other_weights_are_told(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [record("adaptive"), record("cut-5", "algorithm=uniform", "algorithm.cut=5", weights=b"other")]
    assert main([str(runs[0]), "--compare", *map(str, runs)]) == 0
    text = capsys.readouterr().out
    assert "all at 5 (whole model)" in text
    assert "The runs' weights differ." in text


def test_unlike_runs_are_not_compared(record: Record) -> None:
    adaptive = read_run(record("adaptive"))
    fixed = read_run(record("fixed", "algorithm=uniform", "algorithm.cut=2"))
    for name, other in (("seed", 5), ("rounds", 3), ("data", dataclasses.replace(fixed.settings.data, batch=9))):
        unlike = dataclasses.replace(fixed, settings=dataclasses.replace(fixed.settings, **{name: other}))
        with pytest.raises(SettingsError, match=f"fixed and .*adaptive differ in {name} "):
            compare([adaptive, unlike])
    with pytest.raises(SettingsError, match="2 runs with adaptive cuts"):
        compare([adaptive, fixed, dataclasses.replace(adaptive)])
    with pytest.raises(SettingsError, match="0 runs with adaptive cuts"):
        compare([fixed])


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("summary.json", None, "summary.json cannot be read"),
        ("summary.json", "{}", "not a run folder of this version"),
        ("summary.json", "{", "not a run folder of this version"),
        ("events.jsonl", None, "events.jsonl cannot be read"),
        ("events.jsonl", "nonsense\n", "not a run folder of this version"),
        ("config.yaml", "modle: 3", "unknown setting modle"),
    ],
)
def test_what_is_no_finished_run_is_refused(
    record: Record, capsys: pytest.CaptureFixture[str], file: str, text: str | None, says: str
) -> None:
    folder = record("broken")
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    assert main([str(folder)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert str(folder) in printed.err


def test_clients_that_join_in_the_midst_of_a_round_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run in virtual time, whose fleet of four doubles."""
    settings = ["runtime=testbed", "fleet=demo", "dynamics=double", "rounds=1", "testbed.batches=8", "model=mlp"]
    run_testbed(compose([*settings, "logging.console=off", f"run_dir={tmp_path / 'run'}"]))
    assert [client.id for client in read_run(tmp_path / "run").clients] == list(range(8))
    assert main([str(tmp_path / "run")]) == 0
    assert "moves in mid-epoch" in capsys.readouterr().out
