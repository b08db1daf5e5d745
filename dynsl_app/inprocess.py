"""The control plane without Flower: clients are threads of this process, orders are handed over as they are."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from dynsl_app.client.epoch import train
from dynsl_app.client.evaluate import evaluate
from dynsl_app.errors import ClientLost
from dynsl_app.orders import Failure, Order, Reply, TrainOrder
from dynsl_app.server.control import Concurrency
from dynsl_app.settings import NodeSettings


class InProcessControl:
    """A control plane for library use and tests.

    Parameters
    ----------
    clients
        Number of clients; their ids are 0..clients-1.
    node
        What a client's device says of itself, by client id. By default a CPU node that allows nothing but this
        package's own targets.
    """

    def __init__(self, clients: int, node: Callable[[int], NodeSettings] | None = None) -> None:
        self._clients = clients
        self._node = node or (lambda client: NodeSettings(partition_id=client, num_partitions=clients))
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def join(self, clients: int, timeout: float) -> Mapping[int, str]:
        """See :meth:`dynsl_app.server.control.ControlPlane.join`. All clients are there from the start.

        Raises
        ------
        ClientLost
            If more clients are asked for than there are.
        """
        if clients > self._clients:
            raise ClientLost(f"clients={clients}, but InProcessControl was made for {self._clients}")
        return {client: f"thread {client}" for client in range(clients)}

    def push(self, orders: Sequence[Order]) -> None:
        """See :meth:`dynsl_app.server.control.ControlPlane.push`. Each order gets a thread."""
        for order in orders:
            # Daemon: a client that waits for its server must not keep the process alive after a failure.
            threading.Thread(target=self._work, args=(order,), name=f"client-{order.client}", daemon=True).start()

    def poll(self, timeout: float) -> list[Reply]:
        """See :meth:`dynsl_app.server.control.ControlPlane.poll`."""
        replies: list[Reply] = []
        try:
            replies.append(self._replies.get(timeout=timeout))
            while True:
                replies.append(self._replies.get_nowait())
        except queue.Empty:
            return replies

    def concurrency(self) -> Concurrency | None:
        """No limit: threads."""
        return None

    def _work(self, order: Order) -> None:
        try:
            node = self._node(order.client)
            self._replies.put(train(order, node) if isinstance(order, TrainOrder) else evaluate(order, node))
        except Exception as error:
            self._replies.put(Failure(order.client, f"{type(error).__name__}: {error}"))
