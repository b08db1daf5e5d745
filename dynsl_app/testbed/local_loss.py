"""One round in virtual time where clients train on losses of their own (``dtfl_localloss``); its timing only.

Source: Mohammadabadi et al., arXiv 2312.05642: each client has an auxiliary head at its cut, and the server trains on
activations that are cut off from the client, so that no gradient returns. Choices: the auxiliary head is an average
over space, then a linear layer; the activation is sent as soon as its forward is done; a client's uploads follow one
another on its link, and it waits for nothing, however many of its batches the server still has to do; these are done
one at a time, because they train one copy. What is measured of a client's blocks leaves its auxiliary head out.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dynsl_app.data.source import DataSpec
from dynsl_app.model.chain import Chain
from dynsl_app.model.probe import probe
from dynsl_app.server.batching import Group, Request
from dynsl_app.server.director import Measured
from dynsl_app.testbed.links import finish
from dynsl_app.testbed.make_world import training_flops
from dynsl_app.testbed.simulate import FORWARD, Course, Simulation
from dynsl_app.testbed.world import World
from dynsl_app.wire.base import Transfer

ACK_BYTES = 512.0
"""What returns instead of a gradient: a frame without tensors."""


def auxiliary_shares(chain: Chain, spec: DataSpec, batch: int) -> tuple[float, ...]:
    """Training an auxiliary head at cut 1..L over training the whole model, in operations; 0 at L."""
    whole = sum(training_flops(chain, spec, batch))
    shares = []
    for cut in probe(chain, spec)[:-1]:
        values = math.prod(cut.shape)
        features = cut.shape[0] if len(cut.shape) == 3 else values
        shares.append(3 * batch * (2 * features * spec.classes + values) / whole)
    return (*shares, 0.0)


class LocalLoss(Simulation):
    """A round without gradients that return; a client is done when it and the server have done all its batches."""

    auxiliary: Sequence[float] = ()
    """As :func:`auxiliary_shares` gives; to be set before :meth:`run`."""

    def run(self) -> None:
        """See :meth:`Simulation.run`."""
        self._free_s: dict[int, float] = {}
        self._luck: dict[tuple[int, int], float] = {}
        self._done_there: Counter[int] = Counter()
        super().run()

    def _send(self, course: Course) -> None:
        """Forward is done: the activation goes up behind those before it, and the client trains on."""
        now, half, jitter = self._clock.now, course.truth.rtt_s / 2, course.jitter[1]
        size = self._world.up_bytes[course.cut - 1]
        course.bytes_up += size
        access = self._world.server.access_Bps
        if access is not None:
            self._access_up = max(self._access_up, now) + size / access
        start = max(now, self._free_s.get(course.client, 0.0))
        last = max(finish(course.truth.up, course.scale, start, size * jitter), self._access_up)
        if last == math.inf:
            self._later(self._patience, self._give_up, course)
            return
        self._free_s[course.client] = last
        chunks = max(1, math.ceil(size / self._chunk))
        first = last if chunks == 1 else finish(course.truth.up, course.scale, start, self._chunk * jitter)
        up = Transfer(first + half, last + half, int(size), chunks)
        self._push(up.last, partial(self._came, course, course.batch, course.jitter[3], up, course.news), course)
        course.news = None
        factor = course.compute * course.jitter[0]
        own_s = factor * self.auxiliary[course.cut - 1] * sum(course.truth.block_s)
        self._later(course.compute_s * (1 - FORWARD) + own_s, self._trained, course)

    def _trained(self, course: Course) -> None:
        course.news = Measured(self._measured_s(course))
        course.batch += 1
        if course.batch == course.batches:
            self._perhaps_end(course)
        elif course.leaving:  # what it has sent is done without it
            course.present = course.leaving = False
            self._training -= 1
            self._director.left(course.client)
        else:
            self._begin(course)

    def _came(self, course: Course, batch: int, luck: float, up: Transfer, news: Measured | None) -> None:
        self._heard(course, news)
        self._director.arrived(course.client, up)
        self._luck[course.client, batch] = luck
        self._scheduler.add(Request(course.client, batch, course.lane, up.bytes, self._clock.now, course.client))
        self._dispatch()

    def _serve(self, group: Group[int]) -> None:
        (request,) = group
        course = self.courses[request.client]
        work_s = self._work[course.cut] * self._luck.pop((request.client, request.batch))
        service_s = self._server_slowdown * (self._world.server.call_s + work_s)
        wait_s = self._clock.now - request.arrived
        self._push(self._clock.now + service_s, partial(self._through, course, request.batch, wait_s, service_s), None)

    def _through(self, course: Course, batch: int, wait_s: float, service_s: float) -> None:
        """The server has done a batch."""
        self._workers_free += 1
        self._scheduler.done(course.lane)
        if course.lost is None:
            self._done_there[course.client] += 1
            course.bytes_down += ACK_BYTES
            self._director.done(course.client)
            self._director.served(None, [(course.cut, self._batch)], self._noisy(service_s), wait_s)
            members = [[course.client, batch, self._batch]]
            told = {"loss": None, "correct": None, "wait_s": wait_s, "service_s": service_s}
            self._events.emit("step", round=self._round, head=None, members=members, **told)
            self._perhaps_end(course)
        self._dispatch()

    def _perhaps_end(self, course: Course) -> None:
        if course.batch == course.batches == self._done_there[course.client]:
            self._later(course.truth.rtt_s / 2, self._end, course)


def without_gradients(world: World) -> World:
    """The world in which acknowledgements return."""
    down = (*[ACK_BYTES] * (world.blocks - 1), 0.0)
    return replace(world, down_bytes=down)
