"""What a round waits for, and who has kept it waiting for too long. Pure."""

from collections.abc import Collection, Iterable

from dynsl_app.server.session import Session, State
from dynsl_app.settings import FaultSettings


def awaiting(
    sessions: Iterable[Session], replied: Collection[int], now: float, silence: float, faults: FaultSettings
) -> tuple[dict[str, list[int]], dict[int, str]]:
    """What is awaited of whom, and whose deadline has passed.

    Parameters
    ----------
    replied
        Clients whose reply to the round's order has come.
    now, silence
        The time, and the seconds for which nobody in the round has been heard.

    Returns
    -------
    awaited, overdue
        Clients by what they still owe, in words; and the reason by client to be given up.
    """
    awaited: dict[str, list[int]] = {}
    overdue: dict[int, str] = {}
    for session in sessions:
        due = _due(session, replied, now, silence, faults)
        if due is not None:
            what, seconds, limit, reason = due
            awaited.setdefault(what, []).append(session.client)
            if seconds > limit:
                overdue[session.client] = reason
    return awaited, overdue


def _due(
    session: Session, replied: Collection[int], now: float, silence: float, faults: FaultSettings
) -> tuple[str, float, float, str] | None:
    """What a client owes, for how many seconds, how many it may, and what to say when they are over."""
    connect, reconnect, batch = faults.connect_s, faults.reconnect_s, faults.batch_s
    match session.state:
        case State.DONE if session.client not in replied:
            reason = f"its blocks did not come within faults.connect_s={connect:g} s after its last batch"
            return "their blocks, trained and not yet sent", now - session.heard_at, connect, reason
        case State.AWAITED:
            reason = (
                f"its stream did not open within faults.connect_s={connect:g} s without news from anybody; it must "
                f"reach the server's data plane (wire.bind, wire.advertise), and with server.policy=lockstep or "
                f"replay all clients must run at once"
            )
            # Counted while nobody makes progress: with fewer places than clients the rest queue.
            return "their streams to open", silence, connect, reason
        case State.OPEN if session.link is None:
            reason = f"its stream was lost ({session.reason}) and did not come back within"
            reason = f"{reason} faults.reconnect_s={reconnect:g} s"
            return "lost streams to come back", now - session.lost_at, reconnect, reason
        case State.OPEN if not session.pending:
            reason = f"no batch within faults.batch_s={batch:g} s after batch {session.next - 1}"
            return "their next batch", now - session.heard_at, batch, reason
    return None
