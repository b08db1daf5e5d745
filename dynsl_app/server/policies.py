"""Which batching policy a run's lanes get."""

import json
from collections.abc import Callable
from pathlib import Path

from dynsl_app.errors import SettingsError
from dynsl_app.plan import Plan
from dynsl_app.server.batching import Continuous, Lockstep, Payload, Policy, Replay
from dynsl_app.settings import Settings
from dynsl_app.telemetry.sinks.jsonl import read_events


def policy_maker(settings: Settings, plan: Plan, round_: int) -> Callable[[int], Policy[Payload]]:
    """Makes the policy of a lane (a head, or a client with separate heads) of one round.

    Raises
    ------
    SettingsError
        A recorded run cannot be read, or has not this round.
    """
    server = settings.server
    lane_of = {client: plan.lane_of(client) for client in plan.cuts}
    match server.policy:
        case "sequential":
            return lambda lane: Continuous(1, server.max_merge_bytes)
        case "lockstep":
            return lambda lane: Lockstep(client for client, own in lane_of.items() if own == lane)
        case "replay":
            groups = _recorded(str(server.replay), round_)
            return lambda lane: Replay(group for group in groups if lane_of.get(group[0][0]) == lane)
        case _:
            wait_s = server.merge_wait_ms / 1000
            return lambda lane: Continuous(server.max_merge, server.max_merge_bytes, wait_s)


def _recorded(path: str, round_: int) -> list[list[tuple[int, int]]]:
    """The groups of a round as (client, batch), in the order in which they ran."""
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "events.jsonl"
    try:
        steps = [event for event in read_events(file) if event["event"] == "step" and event["round"] == round_]
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise SettingsError(f"server.replay={path}: cannot read the recorded run: {error}") from error
    if not steps:
        raise SettingsError(
            f"server.replay={path}: it has no steps of round {round_}; record a run of as many rounds, with "
            f"events.detail=batch"
        )
    return [[(client, batch) for client, batch, _ in step["members"]] for step in steps]
