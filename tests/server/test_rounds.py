"""The round loop over a control plane that a test plays: who is asked, and what becomes of the answers."""

import itertools
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dynsl_app.errors import ClientLost, SettingsError
from dynsl_app.fleet import Change, Device, Fleet
from dynsl_app.inprocess import InProcessControl
from dynsl_app.orders import EvaluateOrder, Failure, Order, Reply, TrainOrder
from dynsl_app.run import run
from dynsl_app.server.control import Concurrency
from dynsl_app.settings import (
    AlgorithmSettings,
    DataSettings,
    EvaluationSettings,
    FaultSettings,
    LoggingSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    WireSettings,
)
from dynsl_app.telemetry.sinks.jsonl import read_events


class Recording(InProcessControl):
    """Keeps the orders; client 2 may refuse some, and the number of places may be limited."""

    def __init__(self, clients: int = 3, *, refused: type[Order] | None = None, places: int | None = None) -> None:
        super().__init__(clients)
        self._refused, self._places = refused, places
        self.orders: list[Order] = []

    def push(self, orders: Sequence[Order]) -> None:
        self.orders += orders
        for order in orders:
            if order.client == 2 and self._refused is not None and isinstance(order, self._refused):
                self._replies.put(Failure(2, "no battery"))
            else:
                super().push([order])

    def concurrency(self) -> Concurrency | None:
        return None if self._places is None else Concurrency(self._places, "raise the number of places")


def settings(folder: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "clients": 3,
        "rounds": 2,
        "run_dir": str(folder / "run"),
        "model": ModelSettings(name="mlp"),
        "data": DataSettings(name="synthetic", shape=(1, 4, 4), samples=100, limit=36, batch=3),
        "wire": WireSettings(name="inprocess"),
        "logging": LoggingSettings(console="off"),
    }
    return Settings(**given | changes)


def events(folder: Path, name: str) -> list[Mapping[str, Any]]:
    return [event for event in read_events(folder / "run" / "events.jsonl") if event["event"] == name]


def test_clients_are_drawn_by_seed_and_round(tmp_path: Path) -> None:
    """User case 25: nothing else decides; a round's draw is not that of the round before."""
    drawn = []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(number)
        control = Recording(6)
        run(settings(folder, clients=6, clients_per_round=2, rounds=5, seed=seed), control)
        drawn.append([event["clients"] for event in events(folder, "round_start")])
        trained = [(order.round, order.client) for order in control.orders if isinstance(order, TrainOrder)]
        assert trained == [(k, client) for k, clients in enumerate(drawn[-1], start=1) for client in clients]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(clients) for clients in drawn[0]}) > 1
    assert all(len(clients) == 2 and clients == sorted(clients) for clients in drawn[0])


def test_each_client_gets_its_own_secret_each_round(tmp_path: Path) -> None:
    control = Recording()
    run(settings(tmp_path), control)
    tokens = [order.token for order in control.orders if isinstance(order, TrainOrder)]
    assert len(set(tokens)) == len(tokens) == 6
    assert not any(token in (tmp_path / "run" / "events.jsonl").read_text() for token in tokens)


def test_only_blocks_below_the_cut_are_sent(tmp_path: Path) -> None:
    """User case 2."""
    control = Recording()
    run(settings(tmp_path, algorithm=AlgorithmSettings(name="uniform", cut=1)), control)
    for order in control.orders:
        assert isinstance(order, TrainOrder)
        assert {name.split(".")[0] for name in order.weights} == {"hidden1"}


def test_a_failed_reply_costs_a_client_its_round(tmp_path: Path) -> None:
    run(settings(tmp_path), Recording(refused=TrainOrder))
    assert [event["reason"] for event in events(tmp_path, "client_lost")] == ["no battery"] * 2
    assert [(event["clients"], event["samples"]) for event in events(tmp_path, "round_end")] == [(2, 24)] * 2


def test_federated_evaluation_goes_on_without_a_client_that_fails(tmp_path: Path) -> None:
    control = Recording(refused=EvaluateOrder)
    run(settings(tmp_path, evaluation=EvaluationSettings(federated=True), rounds=1), control)
    (end,) = events(tmp_path, "round_end")
    assert 0 <= end["federated_accuracy"] <= 1
    assert [event["message"] for event in events(tmp_path, "warning")] == ["client 2 was not evaluated: no battery"]


def test_federated_evaluation_waits_only_so_long(tmp_path: Path) -> None:
    class Mute(InProcessControl):
        def poll(self, timeout: float) -> list[Reply]:
            return [reply for reply in super().poll(timeout) if reply.client != 1 or not hasattr(reply, "loss_sum")]

    faults = FaultSettings(batch_s=1.0)
    run(settings(tmp_path, evaluation=EvaluationSettings(federated=True), rounds=1, faults=faults), Mute(3))
    (warning,) = events(tmp_path, "warning")
    assert warning["message"] == "no evaluation from clients [1] within faults.batch_s=1 s"


def test_a_step_tells_its_worker_and_what_the_link_took_of_the_batch_before(tmp_path: Path) -> None:
    run(settings(tmp_path, rounds=1, server=ServerSettings(workers=2)), InProcessControl(3))
    steps = events(tmp_path, "step")
    assert {step["worker"] for step in steps} <= {0, 1}
    for step in steps:
        ((_, batch, _),), (exchange,) = step["members"], step["exchanges"]
        if batch == 0:
            assert exchange is None
        else:
            link_s, server_s = exchange
            assert link_s >= 0
            assert 0 < server_s < steps[-1]["t"]


@pytest.mark.parametrize("partition", ["iid", "local"])
def test_a_change_after_the_last_batch_is_warned_of_once(tmp_path: Path, partition: Any) -> None:
    """With data of their own only the clients know how many batches they have, and tell it in their first round."""
    late, last = (Change(at_batch=batch, device="a", compute=2) for batch in (4, 3))
    fleet = Fleet(name="mine", devices=[Device("a", 3, compute=1)], changes=[late, last])
    source = "dynsl_app.data.sources.synthetic.synthetic"
    params = {"shape": (1, 4, 4), "classes": 10, "samples": 100}
    data = DataSettings(name="custom", target=source, params=params, limit=36, batch=3, partition=partition)
    run(
        settings(tmp_path, algorithm=AlgorithmSettings(name="splitfed_v1"), fleet=fleet, data=data), InProcessControl(3)
    )
    (warning,) = events(tmp_path, "warning")
    assert warning["message"].startswith("fleet=mine: change 0, at_batch=4, never happens to clients 0, 1, 2: ")
    begun = [event["t"] for event in events(tmp_path, "round_start")]
    assert (warning["t"] <= begun[0]) == (partition == "iid")
    assert warning["t"] <= begun[1]


def test_lockstep_with_too_few_places_is_refused(tmp_path: Path) -> None:
    """It would wait for ever; the error names what to change."""
    with pytest.raises(SettingsError, match=r"only 2 can run at the same time; raise the number of places, or set"):
        run(settings(tmp_path, algorithm=AlgorithmSettings(name="psl")), Recording(places=2))


def test_replay_with_too_few_places_is_refused(tmp_path: Path) -> None:
    shared = {"algorithm": AlgorithmSettings(name="splitfed_v2")}
    run(settings(tmp_path / "recorded", **shared), InProcessControl(3))
    server = ServerSettings(policy="replay", replay=str(tmp_path / "recorded" / "run"))
    with pytest.raises(SettingsError, match=r"server\.policy=replay waits for all 3 .* raise the number of places$"):
        run(settings(tmp_path, server=server, **shared), Recording(places=2))


def test_sequential_needs_no_place_for_every_client(tmp_path: Path) -> None:
    """User case 32: with one place, clients come one after the other, and all of their batches are taken."""

    class OneByOne(Recording):
        def __init__(self) -> None:
            super().__init__(places=1)
            self._place = threading.Lock()

        def _work(self, order: Order) -> None:
            with self._place:
                super()._work(order)

    summary = run(settings(tmp_path, algorithm=AlgorithmSettings(name="splitfed_v2"), rounds=1), OneByOne())
    assert summary.rounds == 1
    assert events(tmp_path, "client_lost") == []
    served = [member[0] for event in events(tmp_path, "step") for member in event["members"]]
    assert sorted(served) == [0] * 4 + [1] * 4 + [2] * 4
    # Whoever has the place keeps it to the end of its batches.
    assert len([client for client, _ in itertools.groupby(served)]) == 3


def test_clients_that_do_not_join_are_named_and_the_port_is_free_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    wire = WireSettings(name="grpc", tls="off", bind=f"127.0.0.1:{port}")
    with pytest.raises(ClientLost, match="clients=3"):
        run(settings(tmp_path, wire=wire), InProcessControl(2))
    # A run that ended before it began may use its folder again.
    run(settings(tmp_path, wire=wire, rounds=1), InProcessControl(3))


def test_an_impossible_cut_is_refused_before_anybody_joins(tmp_path: Path) -> None:
    class Unasked(InProcessControl):
        def join(self, clients: int, timeout: float) -> Mapping[int, str]:
            raise AssertionError("asked")

    with pytest.raises(SettingsError, match=r"algorithm\.cut=99"):
        run(settings(tmp_path, algorithm=AlgorithmSettings(name="uniform", cut=99)), Unasked(3))
