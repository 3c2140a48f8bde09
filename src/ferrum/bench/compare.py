"""Two reports side by side: which ratios fell by more than the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from ferrum.bench.report import Cell, Report, Setting
from ferrum.core.errors import RequestError

SIGMAS: Final = ((8, 3.5), (6, 4.1), (4, 5.3), (2, 13.3))
"""From so many samples on, the standard errors that a change must exceed: of few samples they are guesses.

Simulated: of 400,000 pairs of reports of the same normal samples, one in 200 exceeds them.
"""

LEAST: Final = 0.02
"""What a change must be at least, however quiet the machine was."""


@dataclass(frozen=True, slots=True)
class Change:
    """A workload's ratio in two reports.

    Attributes:
        before, after: the ratios; None where a report does not have the workload.
        noise: relative change that noise may make; infinite where a report has one sample only, or none that counts.
    """

    workload: str
    before: float | None
    after: float | None
    noise: float

    @property
    def relative(self) -> float | None:
        """(after - before) / before."""
        if self.before is None or self.after is None:
            return None
        return self.after / self.before - 1

    @property
    def known(self) -> bool:
        """Whether the reports say how far the ratio may move by itself, so that a change of it means something."""
        return self.relative is not None and math.isfinite(self.noise)

    @property
    def regressed(self) -> bool:
        """Whether it fell beyond the noise, or is not measured any more: what is gone may have fallen."""
        if self.relative is None:
            return self.after is None
        return self.relative < -self.noise


def compare(before: Report, after: Report) -> tuple[Change, ...]:
    """Every workload of either report.

    Raises:
        RequestError: they measured different things; `param` names what differs.
    """
    for field in fields(Setting):
        first, second = getattr(before.setting, field.name), getattr(after.setting, field.name)
        if first != second:
            raise RequestError(f"{first!r} and {second!r}: different things were measured", param=field.name)
    old, new = _by_name(before), _by_name(after)
    return tuple(_change(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new]))


def _by_name(report: Report) -> Mapping[str, Cell]:
    return {cell.workload: cell for cell in report.cells}


def _change(name: str, before: Cell | None, after: Cell | None) -> Change:
    cells = [cell for cell in (before, after) if cell is not None]
    fewest = min(sum(sample.counted for sample in cell.samples) for cell in cells)
    sigmas = next((sigmas for least, sigmas in SIGMAS if fewest >= least), math.inf)
    noise = max(LEAST, sigmas * math.hypot(*map(_error, cells)))
    return Change(name, None if before is None else before.ratio, None if after is None else after.ratio, noise)


def _error(cell: Cell) -> float:
    """Relative standard error of a ratio; nothing is known of one that rests on disturbed samples."""
    return math.inf if cell.noise is None or not cell.settled else cell.noise
