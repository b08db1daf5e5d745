"""Flower's apps in one process: a Grid over ClientApp calls in threads, without SuperLink and without Ray."""

import threading
from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from dynsl_app.algorithms import check_files
from dynsl_app.client_app import app as client_app
from dynsl_app.flower_control import GridControlPlane
from dynsl_app.leaving import CLIENT_THREAD, interrupted_at_rest
from dynsl_app.run import run
from dynsl_app.settings import Settings
from dynsl_app.summary import Summary
from dynsl_app.targets import named_packages

_RUN_ID = 1
_SERVER_NODE_ID = 1
_FIRST_NODE_ID = 1000
_CLIENT_APP_RAISED = 2
"""Flower's error code for it."""


class LocalGrid(Grid):
    """Runs a ClientApp in a thread per message, for any number of clients at the same time.

    Node ``1000 + i`` holds partition i; its Context lives as long as the grid.

    Parameters
    ----------
    app
        The ClientApp; must be safe to call from several threads.
    clients
        Number of nodes.
    node_config
        What every node's configuration says besides its partition.
    check
        Called whenever replies are looked for; may raise.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        node_config: UserConfig | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        # Flower reads the sender of a message from here; its runtimes set it before they call an app.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN_ID, _SERVER_NODE_ID
        self._app, self._check = app, check
        self._run = Run.create_empty(_RUN_ID)
        self._contexts = {
            _FIRST_NODE_ID + partition: Context(
                run_id=_RUN_ID,
                node_id=_FIRST_NODE_ID + partition,
                node_config={"partition-id": partition, "num-partitions": clients, **(node_config or {})},
                state=RecordDict(),
                run_config={},
            )
            for partition in range(clients)
        }
        self._sent = 0
        self._replies: dict[str, Message] = {}
        self._arrival = threading.Condition()

    def set_run(self, run: Run) -> None:
        """Take what ``run`` returns."""
        self._run = run

    @property
    def run(self) -> Run:
        """Flower's description of the run, empty unless set."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message; Flower's own grids deprecate this in favour of ``Message``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes; they are there from the start."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start a thread for each message."""
        ids = []
        for message in messages:
            self._sent += 1
            ids.append(f"{CLIENT_THREAD}{self._sent}")
            message.metadata.__dict__["_message_id"] = ids[-1]  # as Flower's grids do: it has no setter
            # Daemon: a client that waits for its server must not keep the process alive after a failure.
            threading.Thread(target=self._handle, args=(message,), name=ids[-1], daemon=True).start()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the replies that have arrived."""
        self._check()
        with self._arrival:
            return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then wait for all replies or until ``timeout`` seconds have passed."""
        ids = set(self.push_messages(messages))
        with self._arrival:
            self._arrival.wait_for(lambda: ids <= self._replies.keys(), timeout)
        return self.pull_messages(ids)

    def _handle(self, message: Message) -> None:
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reply = Message(Error(_CLIENT_APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)
        with self._arrival:
            self._replies[message.metadata.message_id] = reply
            self._arrival.notify_all()


def run_local(settings: Settings) -> Summary:
    """Train as the ServerApp does, over the ClientApp in threads of this process.

    The clients may load what ``_target_`` names: whoever wrote these settings owns this machine.

    Raises
    ------
    DynslError
        See :func:`dynsl_app.run.run`; also where profiles are to come from files and a client has none, since no node
        here has one of its own.
    """
    check_files(settings)
    node_config: UserConfig = {"allow": ",".join(sorted(named_packages(settings)))}
    with interrupted_at_rest() as check:
        return run(settings, GridControlPlane(LocalGrid(client_app, settings.clients, node_config, check)))
