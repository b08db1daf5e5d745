"""The command ``dynsl-profile``: what a model costs on this device, block by block."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dynsl_app.errors import DynslError, SettingsError
from dynsl_app.settings import Settings
from dynsl_app.telemetry.profile import Profile, load_profile, to_json

_HELP = """\
Measure a model on this device: for every block the seconds of forward, backward and optimizer step on one batch, its
bytes, its memory, and what would cross a cut after it. Nothing is trained: made-up batches run through a copy.

The model, batch and optimizer are set as for dynsl, by Hydra overrides. Data only give the shape of a sample and the
number of classes; data=synthetic takes both from data.shape and data.classes, so that no files are needed.
"""

_EXAMPLES = """\
examples:
  dynsl-profile model=resnet18 data=synthetic 'data.shape=[3,32,32]' data.batch=32 --out profile.json --plot profile.png
  dynsl-profile model=mobilenet_v2 data=digits --threads 4 --batches 20
  dynsl-profile model=resnet18 data=synthetic --flops 2e9 --label "small board" --out profile.json
  dynsl-profile --show docs/examples/profile-resnet18.json --plot profile.png

exit status: 0, or 2 where the input is refused (the reason is on standard error)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        profile = _profile(options)
        if options.out is not None:
            _write(options.out, to_json(profile))
        if options.plot is not None:
            _plot(profile, options.plot)
    except DynslError as error:
        print(f"dynsl-profile: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130

    from dynsl_app.profile_table import show

    show(profile, [str(path) for path in (options.out, options.plot) if path is not None])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dynsl-profile",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", metavar="SETTING=VALUE", nargs="*", help="as for dynsl: model=, data.batch=, …")
    parser.add_argument("--out", metavar="FILE.json", type=Path, help="write the profile there")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="draw it (any suffix that matplotlib knows)")
    parser.add_argument("--batches", metavar="N", type=_count, default=10, help="batches that count (default 10)")
    parser.add_argument("--threads", metavar="N", type=_count, help="torch's threads (default: the setting threads)")
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu (default), cuda, cuda:1, …")
    parser.add_argument("--label", metavar="TEXT", help="what to call the device in the profile")
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--flops", metavar="SPEED", type=float, help="do not measure: count operations, and divide by so many a second"
    )
    other.add_argument("--show", metavar="FILE.json", type=Path, help="do not measure: read a profile")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _profile(options: argparse.Namespace) -> Profile:
    if options.show is not None:
        if options.overrides:
            raise SettingsError(f"--show reads a profile as it is; leave out {' '.join(options.overrides)}")
        return load_profile(options.show)
    from dynsl_app.compose import compose

    return _make(compose(options.overrides), options)


def _make(settings: Settings, options: argparse.Namespace) -> Profile:
    # Imported here so that --help and --show need not wait for torch.
    import torch

    from dynsl_app.data.load import load_source
    from dynsl_app.model.build import build_chain
    from dynsl_app.profile_table import progress_bar
    from dynsl_app.telemetry.profiling import from_flops, measure

    _check_device(options.device)
    torch.set_num_threads(options.threads or settings.threads)
    # The user's own command may use the user's own code.
    allow = frozenset(
        target.partition(".")[0] for target in (settings.model.target, settings.data.target) if target is not None
    )
    spec = load_source(settings.data, allow=allow).spec
    chain = build_chain(settings.model, spec, settings.seed, allow)
    what = (chain, spec, settings.data.batch, settings.optimizer)
    model = settings.model.label
    if options.flops is not None:
        return from_flops(*what, options.flops, model=model, label=options.label)
    with progress_bar() as progress:
        return measure(
            *what,
            model=model,
            batches=options.batches,
            device=options.device,
            label=options.label,
            progress=progress,
        )


def _check_device(name: str) -> None:
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"--device={name} cannot be used: {reason}; choose cpu, or a device that torch finds"
        ) from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--out={path} cannot be written: {error.strerror}; name a file in a folder that is there"
        ) from None


def _plot(profile: Profile, path: Path) -> None:
    from dynsl_app.profile_plot import plot

    plot(profile, path)


if __name__ == "__main__":
    raise SystemExit(main())
