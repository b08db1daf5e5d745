"""What a client sends and must not: it is named and told, and the others train as if it had left before.

Over gRPC with TLS. Under lockstep the bits say whether a refused batch left a trace: a run is compared to one in which
the client is gone before that batch.
"""

import queue
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynsl_app.errors import DataError, RoundFailed
from dynsl_app.wire import stream
from dynsl_app.wire.base import Frame, Kind, Link
from dynsl_app.wire.protocol import VERSION, Encoding, encode

CULPRIT, BATCH = 1, 2

Spoil = Callable[[Frame], Frame]


def at_batch(spoil: Spoil) -> Callable[[Frame, Link], Frame]:
    """Spoils the culprit's third batch."""

    def out(frame: Frame, link: Link) -> Frame:
        wanted = frame.client == CULPRIT and frame.batch == BATCH and frame.kind is Kind.ACTIVATION
        return spoil(frame) if wanted else frame

    return out


def tensors(**change: Callable[[Tensor], Tensor]) -> Spoil:
    def spoil(frame: Frame) -> Frame:
        changed: Mapping[str, Tensor] = {name: make(frame.tensors[name]) for name, make in change.items()}
        return replace(frame, tensors={**frame.tensors, **changed})

    return spoil


def with_one(value: float) -> Callable[[Tensor], Tensor]:
    def make(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.view(-1)[3] = value
        return changed

    return make


def gone(frame: Frame) -> Frame:
    raise DataError("the disk is gone")


SPOILT: dict[str, tuple[Spoil, str]] = {
    "shape": (tensors(activation=lambda a: a[:, 1:]), "the activation is torch.float32[3, "),
    "dtype": (tensors(activation=lambda a: a.double()), "the activation is torch.float64"),
    "more samples than a batch has": (
        tensors(activation=lambda a: torch.cat([a, a]), target=lambda y: torch.cat([y, y])),
        "the activation is torch.float32[6, ",
    ),
    "no target": (
        lambda frame: replace(frame, tensors={"activation": frame.tensors["activation"]}),
        "an activation and its target are expected",
    ),
    "too few targets": (tensors(target=lambda y: y[1:]), "the target is torch.int64[2]"),
    "label too high": (tensors(target=lambda y: y + 10), "a target is outside 0..9"),
    "label below zero": (tensors(target=lambda y: y - 11), "a target is outside 0..9"),
    "NaN": (tensors(activation=with_one(float("nan"))), "its activation has NaN or Inf"),
    "Inf": (tensors(activation=with_one(float("-inf"))), "its activation has NaN or Inf"),
    "too large for a loss": (tensors(activation=lambda a: torch.full_like(a, 3e38)), "has NaN or Inf"),
    "a batch left out": (lambda frame: replace(frame, batch=BATCH + 1), "batch 3 came where batch 2 of 4"),
    "the end too early": (
        lambda frame: Frame(Kind.END, frame.client, frame.round, frame.batch),
        "the end came after batch 1 of 4",
    ),
    "in another's name": (lambda frame: replace(frame, client=0), "a frame of client 0, round 1, on client 1's stream"),
    "of another round": (lambda frame: replace(frame, round=7), "a frame of client 1, round 7, on client 1's stream"),
    "a kind that only servers send": (lambda frame: replace(frame, kind=Kind.GRADIENT), "GRADIENT is not expected"),
    "progress of a split client": (lambda frame: replace(frame, kind=Kind.PROGRESS), "PROGRESS is not expected"),
    "a placement that nobody commanded": (lambda frame: replace(frame, generation=1), "placement 1 where 0 holds"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_the_culprit_is_named_and_leaves_no_trace(trial, tamper, what: str) -> None:
    """User case 9 for the order of batches."""
    tamper(out=at_batch(gone))
    without = trial("algorithm=psl")
    assert without.watch.lost == {CULPRIT: "DataError: the disk is gone"}

    spoil, message = SPOILT[what]
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen(frame: Frame, link: Link) -> Frame:
        if frame.kind is Kind.ERROR:
            told.put(str(frame.meta["message"]))
        return frame

    tamper(out=at_batch(spoil), in_=listen)
    outcome = trial("algorithm=psl")
    watch = outcome.watch
    assert watch.lost.keys() == {CULPRIT}
    assert message in watch.lost[CULPRIT]
    said = told.get(timeout=20)
    assert said.startswith("client 1: ")
    assert message in said
    assert watch.batches(CULPRIT) == [0, 1]
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]
    assert outcome.model == without.model


@pytest.mark.parametrize("statistics", ["merged", "per_request"])
def test_batchnorm_in_the_head_does_not_spread_a_fault(trial, tamper, statistics: str) -> None:
    """Merged, one member's overflow makes every member's loss NaN; only the culprit may be lost by it."""
    settings = ["model=resnet18", "algorithm=psl", "algorithm.cut=2", f"heads.batchnorm={statistics}"]
    tamper(out=at_batch(gone))
    without = trial(*settings)
    tamper(out=at_batch(tensors(activation=lambda a: torch.full_like(a, 3e38))))
    outcome = trial(*settings)
    assert outcome.watch.lost.keys() == {CULPRIT}
    assert "batch 2: its loss has NaN or Inf; lower optimizer.lr" in outcome.watch.lost[CULPRIT]
    assert outcome.model == without.model


def test_a_rate_that_blows_everything_up_fails_by_name(trial) -> None:
    """All are lost then, and the run says so instead of saving NaN."""
    with pytest.raises(RoundFailed, match=r"lower optimizer\.lr") as failure:
        trial("algorithm=psl", "optimizer.lr=1e30")
    # One reason for all, said once, with everybody it is about.
    assert "clients 0, 1, 2: " in str(failure.value)


def test_a_wrong_token_is_refused(trial, tamper) -> None:
    def out(frame: Frame, link: Link) -> Frame:
        if frame.kind is Kind.HELLO and frame.client == CULPRIT:
            return replace(frame, meta={**frame.meta, "token": "guessed"})
        return frame

    tamper(out=out)
    watch = trial().watch
    assert watch.lost.keys() == {CULPRIT}
    assert "ClientLost: client 1: wrong token for round 1; the token comes with" in watch.lost[CULPRIT]
    (warning,) = watch.named("warning")
    assert "refused a stream from client at" in warning["message"]
    assert "guessed" not in warning["message"]
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]


@pytest.mark.parametrize("claimed", [1, 2])
def test_a_token_of_another_round_is_refused(trial, tamper, claimed: int) -> None:
    """The first round's token opens nothing in the second, whichever round the frame claims to be of."""
    seen: list[Frame] = []

    def out(frame: Frame, link: Link) -> Frame:
        if frame.kind is Kind.HELLO and frame.client == CULPRIT:
            seen.append(frame)
            return replace(seen[0], round=frame.round if claimed == 2 else 1)
        return frame

    tamper(out=out)
    watch = trial("rounds=2").watch
    assert [event["round"] for event in watch.named("client_lost")] == [2]
    assert ("wrong token for round 2" if claimed == 2 else "round 1 is not running") in watch.lost[CULPRIT]
    assert [event["lost"] for event in watch.named("round_end")] == [[], [1]]


class Corrupt:
    """A frame's chunks, changed on the wire."""

    def __init__(self, encoding: Encoding, change: Callable[[bytes], bytes]) -> None:
        self.size = encoding.size
        self._encoding, self._change = encoding, change

    def __iter__(self):
        return map(self._change, self._encoding)


CORRUPT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not ours": (lambda chunk: b"HTTP" + chunk[4:], "not a DynSL frame"),
    "other version": (lambda chunk: chunk[:4] + (VERSION + 1).to_bytes(2, "little") + chunk[6:], "version 2"),
    "oversize": (lambda chunk: chunk[:44] + (2**40).to_bytes(8, "little") + chunk[52:], "bytes"),
    "trailing": (lambda chunk: chunk + b"more", "trail"),
    "noise": (lambda chunk: chunk[:60] + bytes(len(chunk) - 60), ""),
}


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_frame_ends_its_own_stream_only(trial, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    change, message = CORRUPT[what]

    def corrupting(frame: Frame, *sizes: float) -> Encoding | Corrupt:
        encoding = encode(frame, *sizes)
        wanted = (frame.kind, frame.client, frame.batch) == (Kind.ACTIVATION, CULPRIT, BATCH)
        return Corrupt(encoding, change) if wanted else encoding

    monkeypatch.setattr(stream, "encode", corrupting)
    watch = trial("algorithm=psl").watch
    assert watch.lost.keys() == {CULPRIT}
    assert "refused what the client at" in watch.lost[CULPRIT]
    assert message in watch.lost[CULPRIT]
    assert watch.batches(CULPRIT) == [0, 1]
    assert watch.batches(0) == watch.batches(2) == [0, 1, 2, 3]


def test_a_frame_larger_than_allowed_names_the_setting(trial) -> None:
    """Refused by the sender already, before anything is on the wire."""
    with pytest.raises(RoundFailed, match=r"wire.max_frame_bytes allows 65536; raise that"):
        trial("model=cnn", "algorithm.cut=1", "data.shape=[1,32,32]", "wire.max_frame_bytes=65536")
