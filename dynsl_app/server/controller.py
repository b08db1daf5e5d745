"""One round on the data plane: receive, queue, run heads, reply.

Threads: every link has one that receives (the transport's), ``server.workers`` compute, the caller watches
deadlines. Compute never runs where bytes are moved, so while a head computes other clients' bytes keep
moving. All state is behind one condition; tensors are only touched outside it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

import torch

from dynsl_app.errors import LinkClosed, WireError
from dynsl_app.model.optim import Rate
from dynsl_app.model.probe import CutShape
from dynsl_app.model.segment import is_state
from dynsl_app.plan import BatchKey, Plan
from dynsl_app.server.batching import Group, Policy, Request, Scheduler
from dynsl_app.server.checks import batch_tensors, progress_numbers
from dynsl_app.server.deadlines import awaiting
from dynsl_app.server.director import Director, Measured
from dynsl_app.server.heads import Heads, Refused, Result, Work
from dynsl_app.server.session import Session, State
from dynsl_app.settings import Settings
from dynsl_app.telemetry.events import EventStream
from dynsl_app.telemetry.probing import asking, carried, carrying
from dynsl_app.telemetry.report import reported, reported_memory, reported_profile
from dynsl_app.wire.base import Frame, Kind, Link, Scalar, Transfer, tensor_bytes
from dynsl_app.wire.security import same_token

_log = logging.getLogger(__name__)

_FIRST_WORD_S = 10.0
"""After how long a silence the watchdog says what is awaited, seconds; then after twice that, and so on (choice)."""


class Controller:
    """The clients of one round, their queue and the workers.

    Parameters
    ----------
    round_
        From 1.
    plan
        Cuts, boundary, heads.
    tokens
        The secret of each client's stream.
    heads
        What the server trains.
    open_heads
        Makes a client's private copies when its stream opens.
    make_policy
        The batching policy of a lane.
    director
        Decides on moves.
    cut_shapes
        Activation at each cut 1..L.
    classes
        Labels are 0..classes-1.
    """

    def __init__(
        self,
        round_: int,
        plan: Plan,
        tokens: Mapping[int, str],
        heads: Heads,
        open_heads: Callable[[int], None],
        make_policy: Callable[[int], Policy[Work]],
        director: Director,
        cut_shapes: list[CutShape],
        classes: int,
        settings: Settings,
        events: EventStream,
    ) -> None:
        self._round, self._plan, self._heads, self._open_heads = round_, plan, heads, open_heads
        self._director = director
        self._cut_shapes, self._classes = cut_shapes, classes
        self._settings, self._events = settings, events
        self._news = threading.Condition()
        self._scheduler: Scheduler[Work] = Scheduler(make_policy)
        self._running = 0
        self._closing = False
        now = time.monotonic()
        self.sessions: dict[int, Session] = {}
        for client, cut in sorted(plan.cuts.items()):
            self.sessions[client] = Session(client, tokens[client], cut, plan.lane_of(client), heard_at=now)
        self._last_news = now
        self._next_word = _FIRST_WORD_S
        self._workers = [
            threading.Thread(target=self._work, args=(k,), name=f"head-worker-{k}", daemon=True)
            for k in range(settings.server.workers)
        ]
        for worker in self._workers:
            worker.start()

    # -- links: one thread each ------------------------------------------------------------------------------------

    def serve(self, link: Link, hello: Frame) -> None:
        """Serve one link until it ends. Runs in the link's own thread.

        Raises
        ------
        WireError
            The stream is refused; nobody else is affected.
        """
        session, batches = self._recognise(hello)
        try:
            self._admit(session, link, hello, batches)
            while True:
                frame = link.receive()
                if not self._handle(session, link, frame):
                    return
        except LinkClosed as error:
            self._link_lost(session, link, str(error))
        except WireError as error:
            self.fail(session.client, f"sent what is not acceptable: {error}")
        except Exception as error:  # a fault of the server's: this client is lost by it, and nobody else
            _log.exception("serving client %d failed", session.client)
            self.fail(session.client, f"the server failed on what it sent: {type(error).__name__}: {error}")

    def _recognise(self, hello: Frame) -> tuple[Session, int]:
        """Whose link this is, and the batches it announces; raises WireError if it is refused."""
        session = self.sessions.get(hello.client)
        if session is None or not same_token(str(hello.meta.get("token", "")), session.token):
            raise WireError(
                f"client {hello.client}: wrong token for round {self._round}; the token comes with the round's "
                f"order and is good for that client and round only"
            )
        batches = hello.meta.get("batches")
        if not isinstance(batches, int) or batches < 1:
            raise WireError(f"client {session.client}: it has no batches in round {self._round}; give it data")
        with self._news:
            if session.state is State.LOST:
                raise WireError(f"client {session.client}: no longer part of round {self._round}: {session.reason}")
        return session, batches

    def _admit(self, session: Session, link: Link, hello: Frame, batches: int) -> None:
        """Make a link its client's own, in place of one that it may have had."""
        with session.admission:
            first = session.state is State.AWAITED
            if first:
                self._open_heads(session.client)
                self._director.opened(session.client, batches, reported_profile(hello), reported_memory(hello))
            # Before the link is the session's, so that no worker's reply overtakes the WELCOME.
            link.trust()
            link.send(Frame(Kind.WELCOME, session.client, self._round, meta={"next": session.next}))
            with self._news:
                if session.state is State.LOST:
                    raise LinkClosed("given up while its stream was opened")
                stale = session.drop_link()
                session.link = link
                session.heard_at = self._touch()
                if first:
                    session.state = State.OPEN
                    session.batches = batches
                    session.started_at = session.heard_at
                    optimizer, epochs = self._settings.optimizer, self._settings.local_epochs
                    session.rate = Rate(optimizer, batches // epochs, epochs, self._settings.rounds)
        if stale is not None:
            _close(stale)
            self._events.emit("stream_lost", round=self._round, client=session.client, reason="it connected again")
        if first:
            self._events.emit(
                "stream_open",
                round=self._round,
                client=session.client,
                peer=link.peer,
                batches=batches,
                samples=hello.meta.get("samples"),
            )
        else:
            self._events.emit("stream_resumed", round=self._round, client=session.client, next=session.next)

    def _handle(self, session: Session, link: Link, frame: Frame) -> bool:
        """Act on one frame; False when the link has served its purpose."""
        if (frame.client, frame.round) != (session.client, self._round):
            raise WireError(
                f"a frame of client {frame.client}, round {frame.round}, on client {session.client}'s stream"
            )
        match frame.kind:
            case Kind.ACTIVATION:
                self._activation(session, link, frame)
            case Kind.PROGRESS:
                self._progress(session, link, frame)
            case Kind.END:
                self._finish(session)
                link.send(Frame(Kind.ACK, session.client, self._round, frame.batch))
            case Kind.ERROR:
                self.fail(session.client, str(frame.meta.get("message")))
                return False
            case _:
                raise WireError(f"{frame.kind.name} is not expected from a client at cut {session.cut}")
        return True

    def _activation(self, session: Session, link: Link, frame: Frame) -> None:
        if not self._is_new(session, link, frame):
            return
        move, cut = self._placement(session, frame, local=False)
        most = self._settings.data.batch + 1
        activation, target = batch_tensors(frame, cut, self._cut_shapes[cut - 1], most, self._classes)
        assert session.rate is not None
        key = BatchKey(self._settings.seed, session.client, self._round, frame.batch)
        state = {name: value for name, value in frame.tensors.items() if is_state(name)}
        work = Work(key, activation, target, session.rate.at(self._round, frame.batch), cut, state)
        held = tensor_bytes(frame.tensors.values())
        with self._news:
            if session.state is not State.OPEN:
                return
            session.pending = True
            session.next += 1
            session.exchange = _exchange(session, frame)
            before_it, held_s = session.arrived, session.held_s
            session.arrived = frame.received
            request = Request(session.client, frame.batch, session.lane, held, self._touch(), work)
            before = session.take_cut(move)
            self._scheduler.add(request)
            self._news.notify_all()
        if move is not None:
            self._moved(session, before, frame.batch, tensor_bytes(state.values()))
        self._listen(session, frame, before_it, held_s)
        if frame.received is not None:
            self._director.arrived(session.client, frame.received)

    def _progress(self, session: Session, link: Link, frame: Frame) -> None:
        if not self._is_new(session, link, frame):
            return
        move, _ = self._placement(session, frame, local=True)
        samples, loss, correct = progress_numbers(frame, self._settings.data.batch + 1)
        probe, session.asked = carried(frame, session.asked), 0
        if move is not None:
            self._heads.move(session.client, move, {})
        before_it, session.arrived = session.arrived, None if probe is None else frame.received
        self._listen(session, frame, before_it, session.held_s)
        if session.arrived is not None:
            self._director.arrived(session.client, session.arrived)
        command = self._command(session, frame.batch, ahead=1)
        # A probe asked for now comes with the next batch, and what was seen of it with the one after that.
        if command is None and session.moving_to is None and frame.batch + 2 < session.batches:
            session.asked = self._director.probe(session.client)
        meta = {**_commanding(session, command), **asking(session.asked)}
        reply = Frame(Kind.ACK, session.client, self._round, frame.batch, meta=meta, tensors=carrying(probe))
        with self._news:
            session.heard_at = self._touch()
            if session.arrived is not None:
                session.held_s = session.heard_at - session.arrived.last
            session.next += 1
            session.keep(reply)
            session.count(samples, loss, correct)
            before = session.take_cut(move)
        link.send(reply)
        if move is not None:
            self._moved(session, before, frame.batch, 0)
        self._events.emit(
            "progress",
            round=self._round,
            client=session.client,
            batch=frame.batch,
            samples=samples,
            loss=loss,
            correct=correct,
        )

    def _listen(self, session: Session, frame: Frame, up: Transfer | None, held_s: float) -> None:
        """Hand on what a frame tells.

        ``up``: when that batch's activation or probe came; ``held_s``: how long the server had it, which a worker may
        by now have noted of this one.
        """
        told = reported(frame)
        if told is None:
            return
        if told.wait_s is None or told.down is None or up is None:
            measured = Measured(told.block_s)
        else:
            # The client's clock starts when it has sent; the server may have begun before that.
            measured = Measured(told.block_s, up, told.down, max(0.0, told.wait_s - held_s))
        self._director.measured(session.client, measured)

    # -- moves: a command rides on a reply, the first frame of the next generation acknowledges it -----------------

    def _command(self, session: Session, batch: int, *, ahead: int = 0) -> int | None:
        """The new cut that the reply to a batch commands; None if the client stays.

        ``ahead``: batches that the client has begun before it reads the reply.
        """
        self._director.done(session.client)
        if session.moving_to is not None or batch + 1 + ahead >= session.batches:
            return None
        cut = self._director.command(session.client, session.cut)
        if cut == session.cut:
            return None
        session.moving_to = cut
        return cut

    def _placement(self, session: Session, frame: Frame, *, local: bool) -> tuple[int | None, int]:
        """The cut that begins with this frame, if one does, and the one that holds for it."""
        move = session.new_cut(frame)
        cut = session.cut if move is None else move
        if local != (cut == self._plan.blocks):
            raise WireError(f"{frame.kind.name} is not expected from client {session.client} at cut {cut}")
        return move, cut

    def _moved(self, session: Session, before: int, batch: int, up: int) -> None:
        self._director.moved(session.client, session.cut)
        self._events.emit(
            "move",
            round=self._round,
            client=session.client,
            batch=batch,
            cut_before=before,
            cut=session.cut,
            generation=session.generation,
            bytes_up=up,
        )

    def _is_new(self, session: Session, link: Link, frame: Frame) -> bool:
        """Whether this batch is the next one; one sent again after a reconnection is answered again."""
        again: Frame | None = None
        with self._news:
            session.heard_at = self._touch()
            expected = session.next
            if frame.batch < expected:
                again = session.replies.get(frame.batch)
            elif frame.batch != expected or session.pending or frame.batch >= session.batches:
                raise WireError(
                    f"batch {frame.batch} came where batch {expected} of {session.batches} was expected; "
                    f"batches are sent in order, one at a time"
                )
        if again is not None:
            link.send(again)
        return frame.batch == expected

    def _finish(self, session: Session) -> None:
        with self._news:
            session.heard_at = self._touch()
            if session.state is not State.OPEN:
                return
            if session.next != session.batches or session.pending:
                raise WireError(f"the end came after batch {session.next - 1} of {session.batches}")
            session.state, session.ended_at = State.DONE, session.heard_at
            session.replies.clear()
            self._scheduler.leave(session.client, session.lane)
            self._news.notify_all()
        self._director.left(session.client)
        self._events.emit(
            "client_done",
            round=self._round,
            client=session.client,
            batches=session.batches,
            samples=session.samples,
            loss=session.loss_sum / session.samples,
            accuracy=session.correct / session.samples,
        )

    def _link_lost(self, session: Session, link: Link, reason: str) -> None:
        with self._news:
            if session.link is not link:
                return
            session.drop_link()
            session.lost_at = self._touch()
            if session.state is not State.OPEN:
                return
            session.reason = reason
        self._events.emit("stream_lost", round=self._round, client=session.client, reason=reason)

    # -- workers ---------------------------------------------------------------------------------------------------

    def _work(self, worker: int) -> None:
        torch.set_num_threads(self._settings.server.threads)
        while (group := self._await_group()) is not None:
            try:
                self._run(group, worker)
            except Exception as error:  # a fault of the server's: the group's clients are lost by it, the worker is not
                _log.exception("a group of %d failed", len(group))
                for request in group:
                    reason = f"batch {request.batch}: the server failed on it: {type(error).__name__}: {error}"
                    self.fail(request.client, reason)
            finally:
                # After the step's event: events of a lane come in the order in which its groups ran.
                with self._news:
                    self._running -= 1
                    self._scheduler.done(group[0].lane)
                    self._news.notify_all()

    def _await_group(self) -> Group[Work] | None:
        with self._news:
            while True:
                now = time.monotonic()
                group = None if self._closing else self._scheduler.next(now)
                if group is not None:
                    self._running += 1
                    return group
                if self._closing:
                    return None
                wake = self._scheduler.wake_at(now)
                self._news.wait(None if wake is None else max(0.0, wake - now))

    def _run(self, group: Group[Work], worker: int) -> None:
        started = time.monotonic()
        # Read before the replies: then the next batches may come.
        exchanges = {request.client: self.sessions[request.client].exchange for request in group}
        works = [request.payload for request in group]
        results = self._heads.backward(works)
        trained: list[tuple[Work, Result]] = []
        commands: dict[int, int | None] = {}
        for work, result in zip(works, results, strict=True):
            if isinstance(result, Refused):
                self.fail(work.key.client, result.reason)
            else:
                trained.append((work, result))
                commands[work.key.client] = self._command(self.sessions[work.key.client], work.key.batch)
        if trained:
            # The gradients are on their way while the server still updates: the client goes on at once, and its
            # next batch finds the lane busy until the update is done. Blocks that go to a client go after it.
            stepping = [work for work, _ in trained]
            pulled = any(self._is_pull(client, cut) for client, cut in commands.items())
            if pulled:
                self._heads.step(stepping)
            for work, result in trained:
                self._reply(work, result, commands[work.key.client])
            if not pulled:
                self._heads.step(stepping)
            ended = time.monotonic()
            wait_s = started - min(request.arrived for request in group)
            head = self._plan.head_of(trained[0][0].key.client)
            sizes = [len(work.target) for work, _ in trained]
            entries = [(work.cut, size) for (work, _), size in zip(trained, sizes, strict=True)]
            self._director.served(head, entries, ended - started, wait_s)
            self._events.emit(
                "step",
                round=self._round,
                head=head,
                worker=worker,
                members=[[w.key.client, w.key.batch, n] for (w, _), n in zip(trained, sizes, strict=True)],
                loss=sum(r.loss * n for (_, r), n in zip(trained, sizes, strict=True)) / sum(sizes),
                correct=sum(r.correct for _, r in trained),
                wait_s=wait_s,
                service_s=ended - started,
                exchanges=[exchanges[w.key.client] for w, _ in trained],
            )

    def _is_pull(self, client: int, cut: int | None) -> bool:
        """Whether a commanded cut brings blocks to the client."""
        return cut is not None and cut > self.sessions[client].cut

    def _reply(self, work: Work, result: Result, cut: int | None) -> None:
        session = self.sessions[work.key.client]
        tensors = {} if result.gradient is None else {"gradient": result.gradient}
        if cut is not None and self._is_pull(session.client, cut):
            tensors.update(self._heads.export(session.client, cut))
        reply = Frame(
            Kind.ACK if result.gradient is None else Kind.GRADIENT,
            session.client,
            self._round,
            work.key.batch,
            generation=session.generation,
            meta={"loss": result.loss, "correct": result.correct, **_commanding(session, cut)},
            tensors=tensors,
        )
        with self._news:
            session.count(len(work.target), result.loss, result.correct)
            session.pending = False
            session.keep(reply)
            session.heard_at = self._touch()
            if session.arrived is not None:
                session.held_s = session.heard_at - session.arrived.last
            link = session.link
        if link is not None:
            try:
                link.send(reply)
            except LinkClosed as error:
                self._link_lost(session, link, str(error))
            except WireError as error:
                self.fail(session.client, str(error))

    # -- the caller ------------------------------------------------------------------------------------------------

    def fail(self, client: int, reason: str) -> None:
        """Give a client up: name it, tell it, go on without it. Does nothing once it is lost."""
        session = self.sessions[client]
        with self._news:
            if session.state is State.LOST:
                return
            opened = session.state is not State.AWAITED
            session.state, session.reason = State.LOST, reason
            session.replies.clear()
            self._scheduler.leave(client, session.lane)
            link = session.drop_link()
            self._touch()
            self._news.notify_all()
        if opened:
            self._director.left(client)
        self._events.emit("client_lost", round=self._round, client=client, reason=reason)
        if link is not None:
            with suppress(LinkClosed):  # it may be gone already
                link.send(Frame(Kind.ERROR, client, self._round, meta={"message": f"client {client}: {reason}"}))
            _close(link)

    def watch(self, replied: Collection[int]) -> None:
        """Look at links, give up clients whose deadline has passed, say what is awaited when nothing happens for long.

        Parameters
        ----------
        replied
            Clients whose reply to the round's order has come.
        """
        self._look()
        now = time.monotonic()
        with self._news:
            silence = now - self._last_news
            awaited, overdue = awaiting(self.sessions.values(), replied, now, silence, self._settings.faults)
            speak = bool(awaited) and silence > self._next_word
            if speak:
                self._next_word *= 2
        if speak:
            for what, clients in awaited.items():
                fields = {"round": self._round, "for": what, "clients": clients, "seconds": round(silence, 1)}
                self._events.emit("waiting", **fields)
        for client, reason in overdue.items():
            self.fail(client, reason)

    def _look(self) -> None:
        """Tell what the links have seen beside whole frames: heartbeats, and a frame that has come in part."""
        with self._news:
            opened = [s for s in self.sessions.values() if s.state is State.OPEN]
            links = [(session.client, session.link) for session in opened if session.link is not None]
        for client, link in links:
            for seconds in link.round_trips():
                self._director.beat(client, seconds)
            if (part := link.incoming) is not None:
                self._director.coming(client, part, time.monotonic() - part.first)

    def settled(self, replied: Collection[int]) -> bool:
        """Whether every client is lost, or done and among those that ``replied``, and no head is computing."""
        with self._news:
            return self._running == 0 and all(
                session.state is State.LOST or (session.state is State.DONE and session.client in replied)
                for session in self.sessions.values()
            )

    def close(self) -> None:
        """Stop the workers and close all links."""
        with self._news:
            self._closing = True
            links = [link for session in self.sessions.values() if (link := session.drop_link()) is not None]
            self._news.notify_all()
        for link in links:
            link.close()
        for worker in self._workers:
            worker.join()

    @property
    def epoch_s(self) -> float:
        """From the first batch's start to the last batch's end, seconds; 0.0 if no client finished."""
        started = [s.started_at for s in self.sessions.values() if s.started_at is not None]
        ended = [s.ended_at for s in self.sessions.values() if s.ended_at is not None]
        return max(ended) - min(started) if ended else 0.0

    def _touch(self) -> float:
        """Note that something happened; the time, by the monotonic clock."""
        self._last_news, self._next_word = time.monotonic(), _FIRST_WORD_S
        return self._last_news


def _exchange(session: Session, frame: Frame) -> tuple[float, float] | None:
    """What the batch before a frame spent on the link and then here, in seconds; None where it was not measured."""
    told = reported(frame)
    if told is None or told.wait_s is None or not math.isfinite(told.wait_s) or frame.batch == 0:
        return None
    return max(0.0, told.wait_s - session.held_s), session.held_s


def _commanding(session: Session, cut: int | None) -> dict[str, Scalar]:
    """What a reply says to command a cut; nothing for None."""
    return {} if cut is None else {"cut": cut, "generation": session.generation + 1}


def _close(link: Link) -> None:
    """Close a link and do not wait: its peer, which may be stuck, has to read what was sent before."""
    threading.Thread(target=link.close, name=f"close {link.peer}", daemon=True).start()
