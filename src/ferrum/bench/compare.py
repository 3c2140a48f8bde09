"""Comparison of two reports: which ratios fell by more than the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from ferrum.bench.report import Cell, Report, Setting
from ferrum.core.errors import RequestError

SIGMAS: Final = ((8, 3.5), (6, 4.1), (4, 5.3), (2, 13.3))
"""Standard errors a change must exceed, by the least number of samples: few samples estimate their noise badly.

Simulated with 400,000 pairs of reports of equal normal samples: one in 200 exceeds them.
"""

LEAST: Final = 0.02
"""The least change that counts, however small the noise."""


@dataclass(frozen=True, slots=True)
class Change:
    """A workload's ratio in two reports.

    Attributes:
        before, after: the ratios; None if a report lacks the workload.
        noise: relative change that noise can explain; infinite if a report has a single sample.
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
        """Whether the reports have enough samples to judge the change."""
        return self.relative is not None and math.isfinite(self.noise)

    @property
    def regressed(self) -> bool:
        """Whether it fell beyond the noise, or is missing from the second report."""
        if self.relative is None:
            return self.after is None
        return self.relative < -self.noise


def compare(before: Report, after: Report) -> tuple[Change, ...]:
    """Compare every workload of either report.

    Raises:
        RequestError: their settings differ; `param` names the field.
    """
    for field in fields(Setting):
        first, second = getattr(before.setting, field.name), getattr(after.setting, field.name)
        if first != second:
            raise RequestError(f"{first!r} and {second!r}: the reports measured different things", param=field.name)
    old = {cell.workload: cell for cell in before.cells}
    new = {cell.workload: cell for cell in after.cells}
    return tuple(_change(name, old.get(name), new.get(name)) for name in {**old, **new})


def _change(name: str, before: Cell | None, after: Cell | None) -> Change:
    cells = [cell for cell in (before, after) if cell is not None]
    fewest = min(len(cell.samples) for cell in cells)
    sigmas = next((sigmas for least, sigmas in SIGMAS if fewest >= least), math.inf)
    errors = [math.inf if cell.noise is None else cell.noise for cell in cells]
    noise = math.inf if math.isinf(sigmas) else max(LEAST, sigmas * math.hypot(*errors))
    return Change(name, None if before is None else before.ratio, None if after is None else after.ratio, noise)
