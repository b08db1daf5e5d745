"""One round in virtual time where clients train on losses of their own (``dtfl_localloss``).

Source: Mohammadabadi et al., arXiv 2312.05642: each client has a classifier at its cut, and the server trains on
activations that are cut off from the client, so that no gradient returns. Choices, those of the client's own loop
(:mod:`dynsl_app.client.epoch`): the activation is sent as soon as its forward is done and the one before it is
acknowledged, and the client trains on meanwhile. What is measured of a client's blocks leaves its classifier out.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from dynsl_app.data.source import DataSpec
from dynsl_app.model.chain import Chain
from dynsl_app.model.local_head import features
from dynsl_app.model.probe import probe
from dynsl_app.server.book import FRAME_BYTES
from dynsl_app.server.director import Measured
from dynsl_app.testbed.make_world import training_flops
from dynsl_app.testbed.simulate import FORWARD, Course, Simulation
from dynsl_app.testbed.world import World


def classifier_shares(chain: Chain, spec: DataSpec, batch: int) -> tuple[float, ...]:
    """Training a classifier at cut 1..L over training the whole model, in operations; 0 at L."""
    whole = sum(training_flops(chain, spec, batch))
    shares = []
    for shape in probe(chain, spec)[:-1]:
        averaged = math.prod(shape.shape) if len(shape.shape) > 1 else 0
        shares.append(3 * batch * (2 * features(shape) * spec.classes + averaged) / whole)
    return (*shares, 0.0)


class LocalLoss(Simulation):
    """A round without gradients that return."""

    classifiers: Sequence[float] = ()
    """As :func:`classifier_shares` gives; to be set before :meth:`run`."""

    def run(self) -> None:
        """See :meth:`Simulation.run`."""
        self._away: set[int] = set()
        """Clients of which a batch is not acknowledged."""
        self._held: set[int] = set()
        """Those of them that are done with their next forward."""
        self._through: set[int] = set()
        """Those of them that have done their last batch."""
        super().run()

    def _send(self, course: Course) -> None:
        if course.client in self._away:
            self._held.add(course.client)
            return
        self._away.add(course.client)
        super()._send(course)
        own_s = course.slowness * self.classifiers[course.cut - 1] * sum(course.truth.block_s)
        self._later(course.compute_s * (1 - FORWARD) + own_s, self._trained, course)

    def _trained(self, course: Course) -> None:
        if self._compute is not None:
            self._compute.backward(course.client, course.batch)
        course.news = replace(course.news or Measured({}), block_s=self._measured_s(course))
        last = course.leaving or course.batch + 1 == course.batches
        if last and course.client in self._away:
            self._through.add(course.client)
        else:
            self._next(course, None)

    def _reply_read(self, course: Course) -> None:
        """A batch is acknowledged."""
        client = course.client
        away_s = self._clock.now - course.sent_s - course.held_s
        course.news = replace(course.news or Measured({}), up=course.up, down=course.down, away_s=away_s)
        self._away.discard(client)
        if client in self._held:
            self._held.discard(client)
            self._send(course)
        elif client in self._through:
            self._through.discard(client)
            self._next(course, None)


def without_gradients(world: World) -> World:
    """The world in which acknowledgements return."""
    return replace(world, down_bytes=(*[float(FRAME_BYTES)] * (world.blocks - 1), 0.0))
