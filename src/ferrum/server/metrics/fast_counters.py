"""What is counted at every token: a counter and a histogram that cost a fraction of the library's own.

Theirs take a lock for each bucket and total. These are written by one thread at a time, the one that delivers reports,
and a collector sees a token more or less.
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


class QuickCounter(Collector):
    """A counter.

    Args:
        name, help: for the collector; `labels` are those of its one series.
        registry: where it is registered, at zero.
    """

    def __init__(self, name: str, help: str, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        self._about = (name, help)
        self._labels = labels
        self._value = 0
        self._created = time()
        registry.register(self)

    def inc(self, amount: int) -> None:
        """Add to it."""
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        family = CounterMetricFamily(*self._about, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._value, self._created)
        yield family


class QuickHistogram(Collector):
    """A histogram.

    Args:
        name, help: for the collector; `labels` are those of its one series.
        buckets: their upper bounds, without infinity.
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
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += times * value

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(*self._about, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), buckets, self._sum)
        family.add_sample(f"{family.name}_created", dict(self._labels), self._created)
        yield family
