"""When a fully local client's link is probed, what that costs, and what frames say of it."""

import pytest
import torch

from dynsl_app.errors import WireError
from dynsl_app.telemetry.link import LinkEstimate
from dynsl_app.telemetry.probing import MOST_BYTES, SHARE, Prober, asked, asking, carried, carrying
from dynsl_app.wire.base import Frame, Kind, Transfer

CHUNK = 1 << 20
RTT_S = 0.01


class Local:
    """A fully local client on a clock of its own, whose link is probed as a prober wants."""

    def __init__(self, batch_s: float, believed_Bps: float) -> None:
        self.link = LinkEstimate(1, believed_Bps, believed_Bps, RTT_S, CHUNK)
        for k in range(8):
            self.link.rtt.add(RTT_S + 0.001 * (k % 2))
        self._prober, self._batch_s = Prober(self.link), batch_s
        self.batch = 0
        self.probes: list[tuple[int, int, float]] = []
        """Batch, bytes and seconds of each."""

    def train(self, batches: int, true_Bps: float) -> None:
        for _ in range(batches):
            self.batch += 1
            self._prober.earn(self._batch_s)
            size = self._prober.ask(self.batch)
            if size:
                seconds = 2 * size / true_Bps + RTT_S
                once = Transfer(0.0, 0.0, size, 1)
                self.link.exchange(once, once, seconds, self.batch)
                self._prober.spent(seconds)
                self.probes.append((self.batch, size, seconds))


@pytest.mark.parametrize("batch_s", [0.01, 0.1, 2.0])
@pytest.mark.parametrize("true_Bps", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("believed_Bps", [1e4, 1e6, 1e8])
def test_probes_take_a_hundredth_of_the_clients_time(batch_s: float, true_Bps: float, believed_Bps: float) -> None:
    """Whatever is believed at first and however it is, in the long run; the first two may come before their time."""
    local = Local(batch_s, believed_Bps)
    local.train(20_000, true_Bps)
    spent = sum(seconds for _, _, seconds in local.probes)
    ahead = sum(seconds for _, _, seconds in local.probes[:2])
    assert 0 < spent <= SHARE * 20_000 * batch_s + ahead
    assert max(size for _, size, _ in local.probes) <= MOST_BYTES


def test_a_link_that_is_known_is_probed_when_its_estimate_has_aged() -> None:
    local = Local(batch_s=10.0, believed_Bps=1e6)
    local.train(400, 1e6)
    gaps = [later[0] - sooner[0] for sooner, later in zip(local.probes, local.probes[1:], strict=False)]
    assert len(gaps) > 8
    assert min(gaps) >= 8
    assert max(gaps) <= 40
    assert local.link.up.value == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize(("factor", "pause"), [(20.0, 1), (0.05, 2)])
def test_a_change_is_settled_by_a_second_probe_at_once(factor: float, pause: int) -> None:
    """At once, or as soon as a first one that took twenty times as long as expected has been earned."""
    local = Local(batch_s=10.0, believed_Bps=1e6)
    local.train(200, 1e6)
    known = len(local.probes)
    local.train(200, factor * 1e6)
    first, second = local.probes[known : known + 2]
    assert second[0] == first[0] + pause
    seconds_for_a_byte = 1 / local.link.up.value + 1 / local.link.down.value
    assert seconds_for_a_byte == pytest.approx(2 / (factor * 1e6), rel=0.1)


def test_nothing_is_asked_before_it_is_earned() -> None:
    prober = Prober(LinkEstimate(1, 1e6, 1e6, RTT_S, CHUNK))
    assert prober.ask(0) == 0
    prober.earn(1.0)
    assert prober.ask(1) == 0
    prober.earn(1000.0)
    assert prober.ask(2) > 0


def test_one_probe_at_a_time() -> None:
    """However much is in doubt; but one that is never told of is not waited for."""
    link = LinkEstimate(1, 1e6, 1e6, RTT_S, CHUNK)
    prober = Prober(link)
    prober.earn(1000.0)
    assert prober.ask(5) > 0
    assert prober.ask(6) == 0
    assert prober.ask(7) > 0
    prober.spent(0.001)
    prober.earn(1000.0)
    assert prober.ask(8) > 0


def test_what_frames_say_reads_back() -> None:
    assert asked(Frame(Kind.ACK, 1, 1, meta=asking(500))) == 500
    assert asking(0) == carrying(None) == {}
    assert asked(Frame(Kind.ACK, 1, 1)) == 0
    payload = torch.zeros(500, dtype=torch.uint8)
    assert carried(Frame(Kind.PROGRESS, 1, 1, tensors=carrying(payload)), 500) is payload
    assert carried(Frame(Kind.PROGRESS, 1, 1), 500) is None


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1, 2.0, True, "9", None])
def test_an_ask_for_nonsense_is_refused_by_name(size: object) -> None:
    with pytest.raises(WireError, match=r"client 3, batch 7: a probe of .* bytes was asked for"):
        asked(Frame(Kind.ACK, 3, 1, 7, meta={"probe": size}))


@pytest.mark.parametrize(
    ("payload", "size"),
    [
        (torch.zeros(4, dtype=torch.uint8), 5),
        (torch.zeros(4, dtype=torch.uint8), 0),
        (torch.zeros(0, dtype=torch.uint8), 0),
        (torch.zeros(4), 4),
        (torch.zeros(2, 2, dtype=torch.uint8), 4),
    ],
)
def test_a_probe_that_was_not_asked_for_is_refused_by_name(payload: torch.Tensor, size: int) -> None:
    with pytest.raises(WireError, match=rf"client 3, batch 7: its probe is torch\..* asked for were {size} bytes"):
        carried(Frame(Kind.PROGRESS, 3, 1, 7, tensors={"probe": payload}), size)
