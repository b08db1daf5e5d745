"""A profile as a figure (``dynsl-profile --plot``): time by block, and what each cut would cost and need."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dynsl_app.errors import SettingsError
from dynsl_app.telemetry.profile import Profile

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
_COLOURS = {"forward": "#56B4E9", "backward": "#0072B2", "step": "#E69F00"}
_BYTES, _MEMORY, _GREY = "#009E73", "#D55E00", "#555555"


def plot(profile: Profile, path: Path) -> None:
    """Draw a profile into a file; the suffix says which format.

    Raises
    ------
    SettingsError
        If the file cannot be written, or matplotlib does not know its format.
    """
    # A figure of its own, without pyplot: no display is needed and no global state is touched.
    figure = Figure(figsize=(max(7.0, 2.2 + 0.55 * len(profile.blocks)), 7.2), layout="constrained")
    time, crossing = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_time(time, profile)
    _draw_cuts(crossing, profile)
    shape = "×".join(map(str, profile.shape))
    kind = (
        "not measured"
        if profile.source == "flops"
        else f"{profile.threads} threads"
        if profile.threads > 1
        else "1 thread"
    )
    figure.suptitle(
        f"{profile.model}, batch of {profile.batch} × {shape}, {profile.optimizer}\n{profile.device}, {kind}"
    )
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"--plot={path} cannot be written: {reason}") from None


def _draw_time(axes: Axes, profile: Profile) -> None:
    places = range(1, len(profile.blocks) + 1)
    floor = [0.0] * len(profile.blocks)
    for phase, colour in _COLOURS.items():
        heights = [1e3 * getattr(block, f"{phase}_s") for block in profile.blocks]
        axes.bar(places, heights, bottom=floor, color=colour, label=phase, width=0.72)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_ylabel("ms a batch")
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    _tidy(axes)


def _draw_cuts(axes: Axes, profile: Profile) -> None:
    places = list(range(1, len(profile.blocks) + 1))
    # At the last block nothing is sent.
    crossing = [block.activation_bytes / 1e6 for block in profile.blocks[:-1]]
    axes.bar(places[:-1], crossing, color=_BYTES, width=0.72)
    axes.set_ylabel("MB that cross a cut\nafter it, each way", color=_BYTES)
    memory = axes.twinx()
    memory.plot(places, [size / 1e6 for size in profile.peak_bytes()], color=_MEMORY, marker="o", markersize=4)
    memory.set_ylabel("MB of memory for the\nblocks up to it", color=_MEMORY)
    memory.set_ylim(bottom=0)
    memory.spines[["top", "right", "left", "bottom"]].set_visible(False)
    memory.tick_params(length=0, colors=_GREY)
    names = [block.name if len(block.name) <= 16 else f"{block.name[:15]}…" for block in profile.blocks]
    axes.set_xticks(
        places, [f"{place}  {name}" for place, name in zip(places, names, strict=True)], rotation=35, ha="right"
    )
    axes.tick_params(axis="x", labelsize=9)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors=_GREY)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
