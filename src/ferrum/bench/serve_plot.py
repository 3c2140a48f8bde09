"""Charts for a terminal: columns of eighths of a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrum.bench.serve_client import Timeline

WIDTH: Final = 64
"""Columns of a chart: equal parts of its time."""
HEIGHT: Final = 6
MARGIN: Final = 8
"""Columns before a chart, for its scale."""

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def chart(title: str, values: Sequence[float], seconds: float) -> list[str]:
    """The lines of a chart of values over equal parts of some seconds. The highest value fills its column."""
    top = max(values, default=0.0)
    levels = [round(8 * HEIGHT * value / top) if top else 0 for value in values]
    lines = [f"{'':{MARGIN}} {title}"]
    for row in reversed(range(HEIGHT)):
        label = f"{top:.4g}" if row == HEIGHT - 1 else "0" if row == 0 else ""
        cells = "".join(_EIGHTHS[min(8, max(0, level - 8 * row))] for level in levels)
        lines.append(f"{label:>{MARGIN}} ┤{cells}".rstrip())
    end = f"{seconds:.1f} s"
    lines.append(f"{'':{MARGIN}} └{'─' * len(values)}")
    lines.append(f"{'':{MARGIN}}  0{end:>{max(1, len(values) - 1)}}")
    return lines


def charts(timelines: Sequence[Timeline], width: int = WIDTH) -> list[str]:
    """What happened over the run: pieces of text per second, live requests, and the time to the first token.

    Args:
        timelines: at least one.
        width: columns.
    """
    seconds = max(each.end for each in timelines)
    step = seconds / width
    pieces, live = [0.0] * width, [0.0] * width
    first: list[list[float]] = [[] for _ in range(width)]

    def place(moment: float) -> int:
        return min(width - 1, int(moment / step))

    for each in timelines:
        for moment in each.pieces:
            pieces[place(moment)] += 1 / step
        for column in range(place(each.planned), place(each.end) + 1):
            begin, end = column * step, (column + 1) * step
            live[column] += max(0.0, min(end, each.end) - max(begin, each.planned)) / step
        if each.error is None:
            first[place(each.planned)].append(each.ttft)
    means = [sum(column) / len(column) if column else 0.0 for column in first]
    return [
        *chart("pieces of text per second", pieces, seconds),
        *chart("live requests", live, seconds),
        *chart("seconds to the first token, by when a request was due", means, seconds),
    ]
