"""Tables of plain text, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import typer

BAR: Final = 20
"""Length in characters of a full bar."""


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def bar(share: float) -> str:
    """Return a bar in eighths of a character; a share of 1 is a full one."""
    full, rest = divmod(round(8 * BAR * min(max(share, 0.0), 1.0)), 8)
    return "█" * full + " ▏▎▍▌▋▊▉"[rest].strip()
