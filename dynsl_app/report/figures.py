"""Figures of experiments, as SVG that is the same for the same numbers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from dynsl_app.report.accuracy import by_label
from dynsl_app.report.timings import Cases, cut_of, uniform
from dynsl_app.results import BlockFacts, Estimate, Timing, Training

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
_COLOURS = {
    "dynsl": "#D55E00",
    "dynsl_profiled": "#E69F00",
    "ares": "#0072B2",
    "dtfl": "#56B4E9",
    "sfsl": "#009E73",
    "fedavg": "#000000",
    "oracle_static": "#999999",
    "oracle_paid": "#BBBBBB",
    "splitfed_v2": "#CC79A7",
    "psl": "#F0E442",
    "uniform": "#009E73",
}
_SERVERS = {"strong": "#56B4E9", "medium": "#0072B2", "weak": "#D55E00"}


def timings_figure(cases: Cases, path: Path) -> None:
    """Epoch times over the oracle's, a row a case, a dot an algorithm; without an oracle, over the shortest."""
    figure = Figure(figsize=(8, 1.4 + 0.32 * len(cases)), layout="constrained")
    axes = figure.subplots()
    labelled: set[str] = set()
    for place, by_name in enumerate(cases.values()):
        usual = _reference(by_name)
        for name, timing in by_name.items():
            if name in _COLOURS:
                label = None if name in labelled else name
                labelled.add(name)
                top = 4 if name == "dynsl" else 3
                axes.plot(fmean(timing.seconds) / usual, place, "o", color=_COLOURS[name], label=label, zorder=top)
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_yticks(range(len(cases)), [str(case) for case in cases])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("epoch time over the oracle's")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    _save(figure, axes, path)


def uniform_figure(cases: Cases, path: Path) -> None:
    """Epoch time against the uniform cut, a panel for each class of links, a line a server."""
    links = list(dict.fromkeys(case.links for case in cases))
    figure = Figure(figsize=(3.6 * len(links), 3.4), layout="constrained")
    panels = dict(zip(links, figure.subplots(1, len(links), squeeze=False)[0], strict=True))
    for case, by_name in cases.items():
        cuts = uniform(by_name)
        places = [cut_of(timing.algorithm) or 0 for timing in cuts]
        seconds = [fmean(timing.seconds) for timing in cuts]
        panels[case.links].plot(places, seconds, marker="o", color=_SERVERS.get(case.server), label=case.server)
    for name, axes in panels.items():
        axes.set_title(name)
        axes.set_xlabel("blocks on every client")
        axes.set_ylabel("seconds an epoch")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, title="server")
        _tidy(axes)
    _save(figure, None, path)


def accuracy_figure(trainings: Sequence[Training], path: Path) -> None:
    """Accuracy over virtual time, means over seeds."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (heads, name), ones in by_label(trainings).items():
        seconds = [fmean(each) for each in zip(*(one.ended_s for one in ones), strict=True)]
        accuracy = [100 * fmean(each) for each in zip(*(one.accuracy for one in ones), strict=True)]
        style = "--" if heads == "shared" else "-"
        label = f"{name}, shared head" if heads == "shared" else name
        axes.plot(seconds, accuracy, style, marker=".", color=_COLOURS.get(name, "#999999"), label=label)
    axes.set_xlabel("virtual seconds")
    axes.set_ylabel("accuracy on held-out data, %")
    axes.legend(frameon=False, fontsize=8)
    _save(figure, axes, path)


def estimates_figure(found: Sequence[Estimate], path: Path, clients: int = 3) -> None:
    """Estimated and true upload rates of some clients of the first seed, over time."""
    seed = found[0].seed
    everybody = sorted({one.client for one in found if one.seed == seed})
    chosen = everybody[:: max(1, math.ceil(len(everybody) / clients))]
    figure = Figure(figsize=(8, 2.2 * len(chosen)), layout="constrained")
    for axes, client in zip(figure.subplots(len(chosen), 1, squeeze=False)[:, 0], chosen, strict=True):
        ones = [one for one in found if (one.seed, one.client) == (seed, client)]
        times = [one.at_s for one in ones]
        axes.plot(times, [8e-6 * one.up_recent_Bps for one in ones], color="#56B4E9", label="true, mean of 10 s")
        axes.plot(times, [8e-6 * one.up_Bps for one in ones], color="#D55E00", label="estimated")
        axes.set_title(f"client {client}", fontsize=9)
        axes.set_ylabel("Mbit/s up")
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=8)
        _tidy(axes)
    _save(figure, None, path)


def blocks_figure(found: Sequence[BlockFacts], path: Path) -> None:
    """Each model's operations and bytes at the cut, block by block."""
    models = list(dict.fromkeys(one.model for one in found))
    figure = Figure(figsize=(8, 1.9 * len(models)), layout="constrained")
    for axes, model in zip(figure.subplots(len(models), 1, squeeze=False)[:, 0], models, strict=True):
        ones = [one for one in found if one.model == model]
        places = [one.index for one in ones]
        axes.bar(places, [1e-9 * one.flops for one in ones], color="#0072B2", width=0.7)
        axes.set_ylabel("GFLOP", color="#0072B2")
        axes.set_title(model, fontsize=9)
        _tidy(axes)
        sent = axes.twinx()
        sent.plot(places[:-1], [1e-6 * one.sent_bytes for one in ones[:-1]], color="#D55E00", marker="o", markersize=3)
        sent.set_ylabel("MB sent", color="#D55E00")
        sent.set_ylim(bottom=0)
    _save(figure, None, path)


def _reference(by_name: Mapping[str, Timing]) -> float:
    for name in ("oracle", "oracle_static"):
        if name in by_name:
            return fmean(by_name[name].seconds)
    return min(fmean(timing.seconds) for timing in by_name.values())


def _save(figure: Figure, axes: Axes | None, path: Path) -> None:
    if axes is not None:
        _tidy(axes)
    with mpl.rc_context({"svg.hashsalt": "dynsl"}):
        figure.savefig(path, metadata={"Date": None})


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
