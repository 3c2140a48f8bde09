"""A counter and a histogram for values that change at every token.

They cost a fifth of the library's, which lock each bucket and total. Only the thread that delivers the engine's reports
writes them; a concurrent scrape may miss its last token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from time import time

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class FastCounter(Collector):
    """A counter with one series.

    Args:
        name, help: as shown to Prometheus.
        labels: of the series.
        registry: where it is registered, at zero.
    """

    def __init__(self, name: str, help: str, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        self._about = (name, help)
        self._labels = labels
        self._value = 0
        self._created = time()
        registry.register(self)

    def inc(self, amount: int) -> None:
        """Add an amount."""
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._about, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._value, self._created)
        yield family


class FastHistogram(Collector):
    """A histogram with one series.

    Args:
        name, help: as shown to Prometheus.
        labels: of the series.
        buckets: upper bounds, without infinity.
        registry: where it is registered, at zero.
    """

    def __init__(
        self, name: str, help: str, labels: Mapping[str, str], buckets: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        self._about = (name, help)
        self._labels = labels
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        self._created = time()
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += times * value

    def collect(self) -> Iterator[Metric]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(*self._about, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), buckets, self._sum)
        family.add_sample(f"{family.name}_created", dict(self._labels), self._created)
        yield family
