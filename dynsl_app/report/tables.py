"""Tables as Markdown and CSV."""

import csv
import io
from collections.abc import Sequence

Cells = Sequence[str]


def markdown(head: Cells, rows: Sequence[Cells]) -> str:
    """A table; columns but the first are aligned to the right."""
    lines = [_line(head), _line(["---", *(["---:"] * (len(head) - 1))]), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def to_csv(head: Cells, rows: Sequence[Cells]) -> str:
    """The same for programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _line(cells: Cells) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
