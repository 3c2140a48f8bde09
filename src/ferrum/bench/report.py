"""What a run found, as one JSON document: figures, limits, ratios, where the time went, and the peers' figures."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar, Final, Self

from ferrum.bench.limits import Rates
from ferrum.bench.series import Judged
from ferrum.core.errors import RequestError
from ferrum.core.json_record import JsonRecord

VERSION: Final = 1
"""Of the document's layout."""

_MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(JsonRecord):
    """What was measured. Reports of different settings are not compared.

    Attributes:
        model: its name.
        formats: of the weights, by how many bytes are held in each, most first ("int8", "bfloat16").
        kv_format: of keys and values.
        threads: of the kernels.
        group: inputs that share a scale of quantised weights, where that is another number than by default.
    """

    model: str
    formats: tuple[str, ...]
    kv_format: str
    threads: int
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(JsonRecord):
    """Where, when and by what: reports of different origins are what comparisons are for.

    Attributes:
        ferrum: its version.
        numerics_id: kernels, instruction tier and version of the numerics.
        started: UTC, ISO 8601.
        processor: the CPU's name.
        prober: how the machine was probed.
    """

    ferrum: str
    numerics_id: str
    started: str
    processor: str
    prober: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent(JsonRecord):
    """One line of a roofline receipt: operations of one label in the passes of a sample.

    Attributes:
        label: kind and size of the operations.
        count: how many.
        seconds: that they took.
        limit: seconds that they would take at the machine's limit; 0 for what a limit leaves out.
    """

    label: str
    count: int
    seconds: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(JsonRecord):
    """One workload.

    Attributes:
        workload: its name, printable.
        figure, whole, limit: medians in tokens per second, see `Judged`.
        ratio: median share of the limit, above 0.
        noise: relative standard error of `ratio`; None where one sample says nothing of it.
        settled: whether they are over samples that count; else none did, and they are over all.
        samples: every sample.
        receipt: where one sample's time went; empty where the backend cannot tell.

    Raises:
        RequestError: no cell that can be compared; `param` names the field.
    """

    workload: str
    figure: float
    whole: float
    limit: float
    ratio: float
    noise: float | None
    settled: bool
    samples: tuple[Judged, ...]
    receipt: tuple[Spent, ...] = ()

    def __post_init__(self) -> None:
        if not self.workload.isprintable():
            raise RequestError(f"{self.workload!r} cannot be printed", param="workload")
        if not 0 < self.ratio < math.inf:
            raise RequestError(f"must be above 0, not {self.ratio}", param="ratio")
        if self.noise is not None and not 0 <= self.noise < math.inf:
            raise RequestError(f"must be at least 0, not {self.noise}", param="noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCell(JsonRecord):
    """A peer's figure for a workload: the best of its variants.

    Attributes:
        peer, variant, workload: whose, in which setting, of what.
        figure: median tokens per second.
        times: ferrum's `whole` over it.
        samples: tokens per second.
    """

    peer: str
    variant: str
    workload: str
    figure: float
    times: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(JsonRecord):
    """A report in a file of its own. A class of them says which LAYOUT it reads.

    Attributes:
        version: of the document's layout.
    """

    LAYOUT: ClassVar[int]

    version: int

    def write(self, path: Path) -> None:
        """Write the document; a plain file that is there already is replaced by a whole one, or stays."""
        text = self.to_json() + "\n"
        replaced = path.is_file() or not path.exists()
        if path.is_symlink() or not replaced or not os.access(path.parent, os.W_OK):  # /dev/stdout is a link, too
            path.write_text(text)
            return
        aside = path.with_name(f".{os.getpid()}.part")
        try:
            aside.write_text(text)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a document.

        Raises:
            RequestError: no report of this version, or no file that can be read; `param` names the field.
        """
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)  # what a device or a pipe holds, its size does not say
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}", param="report") from None
        if len(content) > _MAX_BYTES:
            raise RequestError(f"{path} is too large to be one", param="report")
        try:
            report = cls.from_json(content)
        except RequestError as error:
            raise RequestError(f"{error.message}, in {path}", param=error.param) from None
        if report.version != cls.LAYOUT:
            raise RequestError(f"{path}: {report.version}, this ferrum reads {cls.LAYOUT}", param="version")
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Document):
    """A run.

    Attributes:
        setting, origin: what was measured, and where.
        weight_bytes: that the model's matrices hold.
        best: the best rates among the run's probes.
        levels: the states of read bandwidth that were seen, fastest first.
        cells: the workloads, each once.
        peers: other engines' figures beside them.

    Raises:
        RequestError: a workload has two cells.
    """

    LAYOUT: ClassVar[int] = VERSION

    setting: Setting
    origin: Origin
    weight_bytes: int
    best: Rates
    levels: tuple[float, ...]
    cells: tuple[Cell, ...]
    peers: tuple[PeerCell, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for each in self.cells:
            if each.workload in seen:
                raise RequestError(f"{each.workload} has two", param="cells")
            seen.add(each.workload)


def cell(workload: str, judged: Sequence[Judged], receipt: Sequence[Spent] = ()) -> Cell:
    """Sum up a workload's samples: at least one."""
    counted = [each for each in judged if each.counted]
    used = counted or judged
    ratios = [each.ratio for each in used]
    error = median_error(ratios)
    return Cell(
        workload=workload,
        figure=median(each.figure for each in used),
        whole=median(each.whole for each in used),
        limit=median(each.limit for each in used),
        ratio=median(ratios),
        noise=None if error is None else error / median(ratios),
        settled=bool(counted),
        samples=tuple(judged),
        receipt=tuple(receipt),
    )


def median_error(values: Sequence[float]) -> float | None:
    """Standard error of the median of values that are nearly normal, from their median absolute deviation.

    None for a single value, which says nothing of its error. Sources: MAD x 1.4826 estimates the standard deviation
    (Rousseeuw and Croux 1993); the median's standard error is sqrt(pi / 2) of the mean's (Kenney and Keeping 1962).
    """
    if len(values) < 2:
        return None
    middle = median(values)
    deviation = 1.4826 * median(abs(value - middle) for value in values)
    return math.sqrt(math.pi / 2) * deviation / math.sqrt(len(values))
