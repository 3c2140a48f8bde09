"""vLLM's metric of the adapters that live requests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ferrum.engine.messages import AdapterCounts


class AdapterUseMetric(Collector):
    """The names of the adapters in use, as labels. Only the present ones are a series: each mixture would be another.

    Args:
        read: returns the engine's last counts, and seconds since 1970 when it reported them; 0 before the first one.
        registry: where it is registered.
    """

    def __init__(self, read: Callable[[], tuple[AdapterCounts, float]], registry: CollectorRegistry) -> None:
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        counts, reported = self._read()
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters that live requests use.", labels=labels)
        named = (str(counts.loaded), ",".join(counts.waiting), ",".join(counts.running))
        family.add_metric(named, reported if counts.running or counts.waiting else 0.0)
        yield family
