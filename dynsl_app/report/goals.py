"""DynSL against baselines and oracles, case by case, and whether the goals that were set for it are met."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dynsl_app.report.statistics import Mean, mean, over, shorter
from dynsl_app.report.tables import markdown, to_csv
from dynsl_app.report.timings import Cases
from dynsl_app.results import Case, Timing

DYNSL, NOT_MOVING = "dynsl", "dynsl between rounds"
BASELINES = ("ares", "dtfl", "sfsl")
"""The adaptive ones; sfsl is an interpretation."""

SLOWED = ("slow_orin_nano", "slow_lattepanda", "slow_orange_pi")
SIX = (*SLOWED, "links_dip", "links_drop", "double")


def best_baseline(case: Mapping[str, Timing]) -> Timing:
    """The adaptive baseline with the shortest mean."""
    return min((case[name] for name in BASELINES if name in case), key=lambda timing: fmean(timing.seconds))


def shorter_than_baseline(case: Mapping[str, Timing]) -> Mean:
    """Per cent."""
    return shorter(case[DYNSL].seconds, best_baseline(case).seconds)


def over_algorithm(name: str) -> Callable[[Mapping[str, Timing]], Mean]:
    """By how many per cent dynsl is longer than another algorithm."""
    return lambda case: over(case[DYNSL].seconds, case[name].seconds)


def over_baseline(case: Mapping[str, Timing]) -> Mean:
    """By how many per cent dynsl is longer than the best baseline."""
    return over(case[DYNSL].seconds, best_baseline(case).seconds)


def comparable(cases: Cases) -> Cases:
    """Those that dynsl and an adaptive baseline have run in."""
    return {
        case: by_name
        for case, by_name in cases.items()
        if DYNSL in by_name and any(name in by_name for name in BASELINES)
    }


_HEAD = (
    *("case", "dynsl, s", "ares, s", "dtfl, s", "sfsl, s", "best of these", "dynsl is shorter, %"),
    *("oracle_static, s", "oracle_paid, s", "oracle, s", "over oracle_static, %", "over oracle, %"),
)


def comparison_rows(cases: Cases) -> list[list[str]]:
    """A row a case."""
    rows = []
    for case, by_name in comparable(cases).items():
        seconds = {name: mean(timing.seconds).text(2) for name, timing in by_name.items()}
        ratios = [over_algorithm(name)(by_name).text() if name in by_name else "" for name in _ORACLES]
        rows.append(
            [
                str(case),
                *(seconds.get(name, "") for name in (DYNSL, *BASELINES)),
                best_baseline(by_name).algorithm,
                shorter_than_baseline(by_name).text(),
                *(seconds.get(name, "") for name in ("oracle_static", "oracle_paid", "oracle")),
                *ratios,
            ]
        )
    return rows


_ORACLES = ("oracle_static", "oracle")


@dataclass(frozen=True)
class Goal:
    """What was to be reached.

    Attributes
    ----------
    bound
        Per cent: at least, or at most where ``least`` is false.
    cases
        That it is about.
    measure
        Of a case, per cent.
    average
        Whether the mean over the cases counts; else the worst.
    """

    words: str
    bound: float
    least: bool
    cases: tuple[Case, ...]
    measure: Callable[[Mapping[str, Timing]], Mean]
    average: bool = False


@dataclass(frozen=True)
class Verdict:
    """How a goal was met. ``value``: None where a case was not run. ``where``: the worst case."""

    goal: Goal
    value: Mean | None
    where: str

    @property
    def met(self) -> bool | None:
        """None where it cannot be told."""
        if self.value is None:
            return None
        return self.value.value >= self.goal.bound if self.goal.least else self.value.value <= self.goal.bound


def goals(cases: Cases) -> list[Goal]:
    """All, the ones about every undisturbed case over those that were run."""

    def of(links: str, servers: Sequence[str], dynamics: Sequence[str], model: str = "resnet18") -> tuple[Case, ...]:
        return tuple(Case(model, links, server, happening) for happening in dynamics for server in servers)

    two = ("medium", "weak")
    undisturbed = tuple(case for case in comparable(cases) if case.dynamics == "none")
    static = [
        Goal(f"{model}, wired, {server}: shorter than the best baseline", bound, True,
             of("wired", [server], ["none"], model), shorter_than_baseline)
        for model, server, bound in (
            ("resnet18", "weak", 38), ("resnet18", "medium", 27), ("resnet18", "strong", 12),
            ("mobilenet_v2", "weak", 30),
        )
    ]  # fmt: skip
    wired, slowed = of("wired", two, SIX), of("wifi", two, ("slow_lattepanda", "slow_orange_pi"))
    dips = of("wifi", two, ["links_dip"])
    other = of("wifi", two, ("slow_orin_nano", "links_dip", "links_drop", "double"))
    return [
        *static,
        Goal("nothing happens: over oracle_static", 3, False, undisturbed, over_algorithm("oracle_static")),
        Goal("nothing happens: over the best baseline", 1, False, undisturbed, over_baseline),
        Goal("wired, six dynamics: shorter than the best baseline, mean", 30, True, wired, shorter_than_baseline, True),
        Goal("wired, six dynamics: over oracle", 4, False, wired, over_algorithm("oracle")),
        Goal("wifi, LattePanda or Orange Pi slowed: shorter, mean", 22, True, slowed, shorter_than_baseline, True),
        Goal("wifi, LattePanda or Orange Pi slowed: over oracle", 10, False, slowed, over_algorithm("oracle")),
        Goal("wifi, links_dip: over oracle_paid", 5, False, dips, over_algorithm("oracle_paid")),
        Goal("wifi, other changes: over not moving", 3, False, other, over_algorithm(NOT_MOVING)),
    ]  # fmt: skip


def judge(goal: Goal, cases: Cases) -> Verdict:
    """Whether a goal is met, by the means over seeds."""
    if not goal.cases or any(case not in cases for case in goal.cases):
        missing = [str(case) for case in goal.cases if case not in cases]
        return Verdict(goal, None, f"not run: {'; '.join(missing[:3]) or 'nothing'}")
    values = {case: goal.measure(cases[case]) for case in goal.cases}
    worst = (min if goal.least else max)(values, key=lambda case: values[case].value)
    if goal.average:
        # Cases are independent draws of no population: the interval is the mean of theirs, which is cautious.
        average = Mean(fmean(one.value for one in values.values()), fmean(one.half for one in values.values()))
        return Verdict(goal, average, f"worst: {worst}, {values[worst].text()}")
    return Verdict(goal, values[worst], str(worst) if len(values) > 1 else "")


_GOAL_HEAD = ("goal", "bound, %", "reached, %", "met", "where")


def goal_rows(cases: Cases) -> list[list[str]]:
    """A row a goal."""
    rows = []
    for verdict in (judge(goal, cases) for goal in goals(cases)):
        goal = verdict.goal
        met = {True: "yes", False: "no", None: "unknown"}[verdict.met]
        value = "" if verdict.value is None else verdict.value.text()
        bound = f"{'at least' if goal.least else 'at most'} {goal.bound:g}"
        rows.append([goal.words, bound, value, met, verdict.where])
    return rows


def goals_markdown(cases: Cases) -> str:
    """Both tables."""
    return f"""## Goals

Reached: the mean over the seeds ± half of its 95 % interval, of the worst case that a goal is about, or of the mean \
over its cases where it says so. Not moving: {NOT_MOVING}. `sfsl` is an interpretation.

{markdown(_GOAL_HEAD, goal_rows(cases))}
## All cases

Ratios are taken seed by seed.

{markdown(_HEAD, comparison_rows(cases))}"""


def goals_csv(cases: Cases) -> str:
    """The goals."""
    return to_csv(_GOAL_HEAD, goal_rows(cases))


def comparison_csv(cases: Cases) -> str:
    """The cases."""
    return to_csv(_HEAD, comparison_rows(cases))
