"""Models block by block."""

import itertools
from collections.abc import Sequence

from dynsl_app.report.tables import markdown, to_csv
from dynsl_app.results import BlockFacts, BlockMeasured


def assumed_rows(found: Sequence[BlockFacts]) -> tuple[list[str], list[list[str]]]:
    """Head and a row a block; devices' times are assumed."""
    devices = list(found[0].device_s)
    head = ["block", "MFLOP", "MB sent", "MB of state", *(f"{name}, ms" for name in devices)]
    rows = []
    for one in found:
        numbers = [1e-6 * one.flops, 1e-6 * one.sent_bytes, 1e-6 * one.state_bytes]
        numbers += [1e3 * one.device_s[name] for name in devices]
        rows.append([f"{one.index} {one.name}", *(f"{number:.4g}" for number in numbers)])
    return head, rows


def assumed_markdown(found: Sequence[BlockFacts]) -> str:
    """A table a model."""
    parts = []
    for model, group in itertools.groupby(found, lambda one: one.model):
        head, rows = assumed_rows(list(group))
        parts.append(f"### {model}\n\n{markdown(head, rows)}")
    return "\n".join(parts)


def assumed_csv(found: Sequence[BlockFacts]) -> str:
    """One table of all models."""
    head, rows = assumed_rows(found)
    return to_csv(["model", *head], [[one.model, *row] for one, row in zip(found, rows, strict=True)])


def measured_tables(found: Sequence[BlockMeasured]) -> tuple[str, str]:
    """Times of one machine as Markdown and CSV."""
    head = ["block", "forward, ms", "backward, ms", "step, ms"]
    rows = [
        [
            f"{one.model} {one.index} {one.name}",
            *(f"{1e3 * s:.3g}" for s in (one.forward_s, one.backward_s, one.step_s)),
        ]
        for one in found
    ]
    return markdown(head, rows), to_csv(head, rows)
