"""Plain columns, the same on a terminal and in a pipe, and sizes for people."""

from __future__ import annotations

from collections.abc import Sequence

import typer

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def size(nbytes: int) -> str:
    """Bytes in the largest binary unit that they fill."""
    amount, unit = float(nbytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
