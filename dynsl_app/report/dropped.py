"""What fallen links cost, and what can be done about it."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean

from dynsl_app.report.statistics import mean
from dynsl_app.report.tables import markdown, to_csv
from dynsl_app.report.timings import uniform
from dynsl_app.results import Case, Dropped, Timing

_HEAD = (
    *("server", "device", "clients", "cut", "batches left", "stay, s", "move, MB", "move, s"),
    *("then local, s", "best cut", "with it, s", "local from the start, s"),
)


def dropped_rows(found: Sequence[Dropped]) -> list[list[str]]:
    """Means over the clients of a kind of device in all seeds, of those that have something left to do and send."""
    left = [one for one in found if one.move_bytes > 0 and one.rest > 0]
    left.sort(key=lambda one: (one.case, one.device))
    rows = []
    for (case, device), group in itertools.groupby(left, lambda one: (one.case, one.device)):
        ones = list(group)
        numbers = [
            fmean(values)
            for values in (
                [one.cut for one in ones],
                [one.rest for one in ones],
                [one.stay_s for one in ones],
                [1e-6 * one.move_bytes for one in ones],
                [one.move_s for one in ones],
                [one.move_s + one.local_s for one in ones],
                [one.best_cut for one in ones],
                [one.best_s for one in ones],
                [one.start_local_s for one in ones],
            )
        ]
        rows.append([case.server, device, str(len(ones)), *(f"{number:.1f}" for number in numbers)])
    return rows


def dropped_csv(found: Sequence[Dropped]) -> str:
    """For programs."""
    return to_csv(_HEAD, dropped_rows(found))


_POLICIES = {
    "oracle_static": "stay at the best static cuts",
    "dynsl between rounds": "dynsl that plans between rounds only",
    "dynsl": "dynsl",
    "dynsl at once": "dynsl that moves without waiting (allocator.guard=0)",
    "fedavg": "fully local from the start, so that links do not matter",
    "oracle_paid": "the truth at every change, moves paid",
    "oracle": "the truth at every change, moves free: what a copy of the blocks on the device would allow",
}


def policy_rows(case: Mapping[str, Timing]) -> list[list[str]]:
    """Seconds an epoch of each way to act, the shortest first."""
    named = [(_POLICIES[name], timing) for name, timing in case.items() if name in _POLICIES]
    cuts = uniform(case)
    if cuts:
        best = min(cuts, key=lambda timing: fmean(timing.seconds))
        named.append((f"the best uniform cut ({best.algorithm})", best))
    named.sort(key=lambda pair: fmean(pair[1].seconds))
    return [[words, mean(timing.seconds).text(1)] for words, timing in named]


def dropped_markdown(found: Sequence[Dropped], cases: Mapping[Case, Mapping[str, Timing]]) -> str:
    """Both tables, for the cases that ``found`` is about."""
    about = sorted({one.case for one in found})
    policies = "\n".join(
        f"### {case}\n\n{markdown(['what is done', 'seconds an epoch'], policy_rows(cases[case]))}" for case in about
    )
    return f"""## When links fall to a tenth and stay there

Clients whose link has fallen, at their cuts of the best static plan, each taken alone with the true parameters. \
*Stay*: the batches left at the same cut; *then local*: the move to fully local over the fallen link, and the \
rest; *with it*: the move to the best cut, and the rest. Means over clients and seeds.

{markdown(_HEAD, dropped_rows(found))}
What each way to act took in simulation:

{policies}"""
