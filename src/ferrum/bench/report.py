"""Reports as JSON documents: samples of each workload, their medians and the share of the limit reached.

`ServeReport` in `serve_report.py` and `QualityReport` in `quality.py` are the other kinds of document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import ClassVar, Final, Self

from ferrum.bench.limits import Rates
from ferrum.contract.model_info import ExecutorTraits
from ferrum.core.errors import RequestError
from ferrum.core.json_record import JsonRecord
from ferrum.core.version import installed_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(JsonRecord):
    """What was measured. Reports of different settings cannot be compared.

    Attributes:
        model: its name.
        formats: of the weights, ordered by bytes held, most first ("int8", "bfloat16").
        kv_format: of keys and values.
        threads: of the kernels.
    """

    model: str
    formats: tuple[str, ...]
    kv_format: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(JsonRecord):
    """Where, when and with which version it was measured. Comparisons ignore it.

    Attributes:
        ferrum: its version.
        numerics_id: the arithmetic and its version.
        started: UTC, ISO 8601.
        processor: the CPU's name.
        prober: how the machine was probed; empty if speed was not measured.
        kernels: the kernels in use, with their instruction tier.
    """

    ferrum: str
    numerics_id: str
    started: str
    processor: str
    prober: str = ""
    kernels: str = ""

    @classmethod
    def of(cls, traits: ExecutorTraits, processor: str, prober: str = "") -> Self:
        """Return the origin of a measurement that begins now."""
        return cls(
            ferrum=installed_version(),
            numerics_id=traits.numerics_id,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            processor=processor,
            prober=prober,
            kernels=traits.kernels,
        )


@dataclass(frozen=True, slots=True)
class Sample(JsonRecord):
    """One measurement in tokens per second.

    Attributes:
        figure: of the forward passes alone.
        whole: including sampling and everything else up to the tokens.
        limit: the machine's limit at that time.
    """

    figure: float
    whole: float
    limit: float

    @property
    def ratio(self) -> float:
        """The share of the limit that was reached."""
        return self.figure / self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(JsonRecord):
    """One workload's result.

    Attributes:
        workload: its name.
        figure, whole, limit: medians of `samples` in tokens per second.
        ratio: median share of the limit, above 0.
        noise: relative standard error of `ratio`; None for a single sample.
        samples: all samples.

    Raises:
        RequestError: `ratio` is not above 0.
    """

    workload: str
    figure: float
    whole: float
    limit: float
    ratio: float
    noise: float | None
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        if not self.ratio > 0:
            raise RequestError(f"must be above 0, not {self.ratio}", param="ratio")

    @classmethod
    def of(cls, workload: str, samples: Sequence[Sample]) -> Self:
        """Summarise at least one sample."""
        ratios = [each.ratio for each in samples]
        error = median_error(ratios)
        return cls(
            workload=workload,
            figure=median(each.figure for each in samples),
            whole=median(each.whole for each in samples),
            limit=median(each.limit for each in samples),
            ratio=median(ratios),
            noise=None if error is None else error / median(ratios),
            samples=tuple(samples),
        )


def median_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the median of nearly normal values; None for a single value.

    MAD x 1.4826 estimates the standard deviation (Rousseeuw and Croux 1993); the median's standard error is
    sqrt(pi / 2) of the mean's (Kenney and Keeping 1962).
    """
    if len(values) < 2:
        return None
    middle = median(values)
    deviation = 1.4826 * median(abs(value - middle) for value in values)
    return math.sqrt(math.pi / 2) * deviation / math.sqrt(len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(JsonRecord):
    """A report in a file. Each subclass sets the LAYOUT version it reads."""

    LAYOUT: ClassVar[int]

    version: int

    def write(self, path: Path) -> None:
        """Write the document."""
        path.write_text(self.to_json() + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a document.

        Raises:
            RequestError: the file is unreadable or no report of this version; `param` names the field.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}", param="report") from None
        try:
            report = cls.from_json(content)
        except RequestError as error:
            raise RequestError(f"{error.message}, in {path}", param=error.param) from None
        if report.version != cls.LAYOUT:
            raise RequestError(f"{path} has version {report.version}, expected {cls.LAYOUT}", param="version")
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Document):
    """Results of one run of `ferrum bench`.

    Attributes:
        setting, origin: what was measured, and where.
        weight_bytes: bytes of the model's matrices.
        best: the best rates among the run's probes.
        cells: one per workload.
    """

    LAYOUT: ClassVar[int] = 2

    setting: Setting
    origin: Origin
    weight_bytes: int
    best: Rates
    cells: tuple[Cell, ...]


# ---- Comparison of two reports: which ratios fell by more than the noise ----

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
