"""Links lost in mid-epoch: the client comes back, no step is lost or done twice, and the bits are the same.

User cases 28 (stream reset), 29 (reconnect under TLS) and 30 (lost during an upload).
"""

import threading

import pytest

from dynsl_app.errors import LinkClosed
from dynsl_app.server import rounds
from dynsl_app.server.director import Stay
from dynsl_app.server.heads import Heads
from dynsl_app.wire.base import Frame, Kind, Link

WIRES = {"grpc": ["wire=grpc"], "inprocess": ["wire=inprocess"]}
HEADS = {
    "separate": ["algorithm=splitfed_v1"],
    "shared": ["algorithm=psl"],
    "fully local": ["algorithm=fedavg"],
    "own losses": ["algorithm=dtfl_localloss", "allocator.min_cut=2", "allocator.max_cut=2"],
}


class Breaks:
    """Breaks client 1's link at given frames, each time once."""

    def __init__(self, *places: tuple[str, Kind, int]) -> None:
        self._places = set(places)

    def before(self, frame: Frame, link: Link) -> Frame:
        """Before it is sent: the server never sees this copy of it."""
        return self._break("before", frame, link)

    def lose(self, frame: Frame, link: Link) -> Frame:
        """The answer was on its way, and never comes."""
        return self._break("lose", frame, link)

    def _break(self, where: str, frame: Frame, link: Link) -> Frame:
        place = (where, frame.kind, frame.batch)
        if frame.client == 1 and place in self._places:
            self._places.remove(place)
            link.close()
            raise LinkClosed(f"cut at {place}")
        return frame

    @property
    def left(self) -> set[tuple[str, Kind, int]]:
        return self._places


PLACES: dict[str, list[tuple[str, Kind, int]]] = {
    "before an upload": [("before", Kind.ACTIVATION, 1)],
    "the reply lost": [("lose", Kind.GRADIENT, 1)],
    "the first reply lost": [("lose", Kind.GRADIENT, 0)],
    "the welcome lost": [("lose", Kind.WELCOME, 0)],
    "the end lost": [("before", Kind.END, 4)],
    "the last acknowledgement lost": [("lose", Kind.ACK, 4)],
    "again and again": [
        ("lose", Kind.WELCOME, 0),
        ("before", Kind.ACTIVATION, 0),
        ("lose", Kind.GRADIENT, 0),
        ("lose", Kind.GRADIENT, 1),
        ("before", Kind.ACTIVATION, 3),
        ("lose", Kind.GRADIENT, 3),
        ("lose", Kind.ACK, 4),
    ],
}
LOCAL_PLACES: dict[str, list[tuple[str, Kind, int]]] = {
    "progress lost": [("before", Kind.PROGRESS, 1)],
    "acknowledgements lost": [("lose", Kind.ACK, 0), ("lose", Kind.ACK, 3), ("lose", Kind.ACK, 4)],
}
ALONE_PLACES: dict[str, list[tuple[str, Kind, int]]] = {
    "uploads lost": [("before", Kind.ACTIVATION, 0), ("before", Kind.ACTIVATION, 3)],
    "acknowledgements lost": [
        ("lose", Kind.ACK, 0),
        ("lose", Kind.ACK, 1),
        ("lose", Kind.ACK, 3),
        ("lose", Kind.ACK, 4),
    ],
}
CASES = [(heads, where, places) for heads in ("separate", "shared") for where, places in PLACES.items()]
CASES += [("fully local", where, places) for where, places in LOCAL_PLACES.items()]
CASES += [("own losses", where, places) for where, places in ALONE_PLACES.items()]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("heads", "places"), [pytest.param(h, p, id=f"{h}-{w}") for h, w, p in CASES])
def test_a_broken_link_changes_no_bit(trial, tamper, heads: str, places: list[tuple[str, Kind, int]], wire) -> None:
    settings = [*HEADS[heads], *WIRES[wire], "rounds=2"]
    undisturbed = trial(*settings)
    breaks = Breaks(*places)
    tamper(out=breaks.before, in_=breaks.lose)
    outcome = trial(*settings)
    watch = outcome.watch
    assert not breaks.left
    assert not watch.lost
    if heads != "fully local":
        assert watch.batches(1) == [0, 1, 2, 3]
    assert {event["client"] for event in watch.named("stream_open", round=1)} == {0, 1, 2}
    resumed = watch.named("stream_resumed")
    assert {event["client"] for event in [*resumed, *watch.named("stream_lost")]} <= {1}
    # Before the stream was open there was nothing to resume; after its end nobody needs it.
    assert len(resumed) >= len([place for place in places if place[1] not in (Kind.WELCOME, Kind.END)])
    assert outcome.model == undisturbed.model


@pytest.mark.parametrize("heads", ["separate", "shared"])
def test_cut_in_the_middle_of_an_upload(trial, watch, proxy, heads: str) -> None:
    """Real connections, with TLS, cut when part of a frame has arrived."""
    # An activation has 36 KB in nine chunks, so that most places are within one.
    settings = [*HEADS[heads], "model=cnn", "data.shape=[1,16,16]", "algorithm.cut=1", "wire.chunk_bytes=4096"]
    undisturbed = trial(*settings)
    made, through = proxy
    made.cut_after(80_000)
    watch.when(lambda event: event["event"] == "stream_resumed", lambda: made.cut_after(70_000))
    outcome = trial(*settings, *through, watch=watch)
    assert made.cuts == 2
    assert not watch.lost
    assert watch.named("stream_lost")
    assert watch.named("stream_resumed")
    assert all(watch.batches(client) == [0, 1, 2, 3] for client in range(3))
    assert outcome.model == undisturbed.model


def test_all_links_cut_at_once(trial, watch, proxy) -> None:
    """While the server computes: nobody's stream is there when its reply is ready."""
    undisturbed = trial("algorithm=psl")
    made, through = proxy
    watch.when(lambda event: event["event"] == "step" and event["members"][0][1] == 1, made.cut)
    outcome = trial("algorithm=psl", *through, watch=watch)
    assert made.cuts == 1
    assert not watch.lost
    assert {event["client"] for event in watch.named("stream_resumed")} == {0, 1, 2}
    assert outcome.model == undisturbed.model


def test_a_batch_sent_again_while_it_is_computed_is_computed_once(
    trial, tamper, watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link breaks when the head has begun; the reply goes to the new link."""
    undisturbed = trial()
    begun, back = threading.Event(), threading.Event()
    backward = Heads.backward

    def held(self, works):
        if works[0].key.client == 1 and works[0].key.batch == 2:
            begun.set()
            assert back.wait(20)
        return backward(self, works)

    def out(frame: Frame, link: Link) -> Frame:
        if (frame.client, frame.batch, frame.kind) == (1, 2, Kind.ACTIVATION) and not begun.is_set():
            link.send(frame)
            assert begun.wait(20)
            link.close()
            raise LinkClosed("cut while the head computes")
        return frame

    monkeypatch.setattr(Heads, "backward", held)
    tamper(out=out)
    watch.when(lambda event: event["event"] == "stream_resumed", back.set)
    outcome = trial(watch=watch)
    assert watch.batches(1) == [0, 1, 2, 3]
    assert outcome.model == undisturbed.model


def test_moves_survive_a_broken_link(trial, tamper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame that carries a move's state, and the reply that carries it the other way, are lost once each."""

    class Pendulum(Stay):
        """Sends client 1 down, then up, then down."""

        def command(self, client: int, cut: int) -> int | None:
            return {1: 3, 2: 1, 3: 1}[cut] if client == 1 else None

    monkeypatch.setattr(rounds, "Stay", Pendulum)
    settings = ["optimizer=adam", "optimizer.momentum=0", "algorithm.cut=2", "data.batch=2"]
    undisturbed = trial(*settings)
    assert len(undisturbed.watch.named("move", client=1)) >= 4
    places: list[tuple[str, Kind, int]] = []
    for batch in range(5):
        places += [("before", Kind.ACTIVATION, batch), ("lose", Kind.GRADIENT, batch)]
    breaks = Breaks(*places)
    tamper(out=breaks.before, in_=breaks.lose)
    outcome = trial(*settings)
    assert not breaks.left
    assert not outcome.watch.lost
    assert [e["cut"] for e in outcome.watch.named("move")] == [e["cut"] for e in undisturbed.watch.named("move")]
    assert outcome.model == undisturbed.model


@pytest.mark.parametrize("wire", WIRES)
def test_probes_survive_a_broken_link_and_change_no_bit(trial, tamper, monkeypatch: pytest.MonkeyPatch, wire) -> None:
    """The frame that carries a probe is lost, and the answer that sends it back; both are sent again."""

    class Curious(Stay):
        def probe(self, client: int) -> int:
            return 5000

    settings = ["algorithm=fedavg", "data.batch=2", "wire.chunk_bytes=4096", *WIRES[wire]]
    undisturbed = trial(*settings)
    monkeypatch.setattr(rounds, "Stay", Curious)
    probes: list[int] = []

    def out(frame: Frame, link: Link) -> Frame:
        if "probe" in frame.tensors and frame.client == 1:
            probes.append(frame.batch)
        return breaks.before(frame, link)

    breaks = Breaks(
        ("before", Kind.PROGRESS, 1), ("lose", Kind.ACK, 1), ("lose", Kind.ACK, 2), ("before", Kind.PROGRESS, 4)
    )
    tamper(out=out, in_=breaks.lose)
    outcome = trial(*settings)
    assert not breaks.left
    assert not outcome.watch.lost
    # The first frame can have none, nobody would hear of one with the last; what is lost is sent again.
    assert probes == [1, 1, 1, 2, 2, 3, 4, 4]
    assert outcome.model == undisturbed.model
