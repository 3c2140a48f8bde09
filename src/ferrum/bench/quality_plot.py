"""A `QualityReport` as an SVG plot: divergence over bits per weight, and labels for its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final
from xml.sax.saxutils import escape

from ferrum.bench.quality import QualityReport, Row

_WIDTH: Final = 640
_HEIGHT: Final = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 48
_LINE: Final = 15
"""Height of a label."""

_LETTER: Final = 6.5
"""Width of a letter of a label, roughly."""

_EXACT: Final = 1e-7
"""Divergence at which models without any are drawn: a logarithmic axis has no zero."""


def labels(report: QualityReport) -> list[str]:
    """Return a short label for each row: its format, and what else differs between rows."""
    several_models = len({row.subject.model for row in report.rows}) > 1
    several_kv = len({row.subject.kv_format for row in report.rows}) > 1
    return [_label(row, model=several_models, kv=several_kv) for row in report.rows]


def _label(row: Row, *, model: bool, kv: bool) -> str:
    subject = row.subject
    before = f"{PurePath(subject.model).name}: " if model else ""
    return f"{before}{subject.format}{f', KV {subject.kv_format}' if kv else ''}"


def drawn(report: QualityReport) -> str:
    """Return the plot as SVG, readable on light and dark pages."""
    nats = [max(row.quality.divergence, _EXACT) for row in report.rows]
    axes = _Axes(
        bits=1.25 * max(row.subject.bits for row in report.rows),
        low=math.floor(math.log10(min(nats))),
        high=math.floor(math.log10(max(nats))) + 1,
    )
    points = [(axes.x(row.subject.bits), axes.y(each)) for row, each in zip(report.rows, nats, strict=True)]
    lines = [
        *axes.lines(),
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#2f6f9f"/>' for x, y in points),
        *_texts(labels(report), points),
    ]
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="#888">\n{body}\n</svg>\n'
    )


@dataclass(frozen=True, slots=True)
class _Axes:
    """Bits per weight from 0 to `bits`; nats per token from 10^low to 10^high."""

    bits: float
    low: int
    high: int

    def x(self, bits: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * bits / self.bits

    def y(self, nats: float) -> float:
        part = (self.high - math.log10(nats)) / (self.high - self.low)
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * part

    def lines(self) -> Iterator[str]:
        """Return the grid, its numbers and the names of the axes."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        step = 4 if self.bits > 12 else 2
        for bits in range(0, int(self.bits) + 1, step):
            yield f'<path d="M{self.x(bits):.1f} {_TOP}V{bottom}" stroke="#8884"/>'
            yield f'<text x="{self.x(bits):.1f}" y="{bottom + 17}" text-anchor="middle">{bits}</text>'
        for power in range(self.low, self.high + 1):
            y = self.y(10.0**power)
            yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#8884"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        yield f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">bits per weight</text>'
        middle = (_TOP + bottom) / 2
        turned = f'transform="rotate(-90 14 {middle})" text-anchor="middle"'
        yield f'<text x="14" y="{middle}" {turned}>mean KL divergence, nats per token</text>'


def _texts(names: Sequence[str], points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Return labels next to their points, moved down where they would cover another."""
    taken: list[tuple[float, float, float]] = []
    for name, (x, y) in sorted(zip(names, points, strict=True), key=lambda each: each[1][1]):
        width = _LETTER * len(name)
        fits = x + 8 + width < _WIDTH
        begin = x + 8 if fits else x - 8 - width
        while any(abs(y - other) < _LINE and begin < right and left < begin + width for left, right, other in taken):
            y += 1
        taken.append((begin, begin + width, y))
        place = f'x="{x + 8:.1f}"' if fits else f'x="{x - 8:.1f}" text-anchor="end"'
        yield f'<text {place} y="{y + 4:.1f}">{escape(name)}</text>'
