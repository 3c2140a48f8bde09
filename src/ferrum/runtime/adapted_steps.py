"""`AdaptedSteps`: the program of a model's steps with adapters, made with the first adapter."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ferrum.core.errors import FerrumError
from ferrum.core.snapshots import LoraMetricsSnapshot
from ferrum.core.step import AdapterUse, Span
from ferrum.kernels.interface import Kernels, Network, Replay
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.program_recorder import record
from ferrum.runtime.adapted_network import AdaptedNetwork
from ferrum.runtime.adapter_slots import AdapterSlots


class AdaptedSteps:
    """Steps with adapters of one model. Until `load` nothing is recorded, and no buffer allocated.

    Args:
        network, kernels: of the model.
        limits: rows of a pass; None walks the network at each step.

    Attributes:
        network, replay: of steps with adapters.
        slots: the adapters; None before `load`.
        chosen: the adapters that sequences of named verbs use, by cache id.
    """

    def __init__(self, network: Network, kernels: Kernels, limits: Mapping[Extent, int] | None) -> None:
        self.network = network
        self._kernels, self._limits = kernels, limits
        self.replay: Replay | None = None
        self.slots: AdapterSlots | None = None
        self.chosen: dict[str, tuple[AdapterUse, ...]] = {}

    def load(self) -> AdapterSlots:
        """Return the adapters. The first call records the program and allocates its buffers."""
        if self.slots is None:
            network = AdaptedNetwork(self.network)
            program = record(network)
            self.replay = None if self._limits is None else self._kernels.prepare(program, self._limits)
            self.network, self.slots = network, AdapterSlots(self._kernels, network.sites.found.values())
        return self.slots

    def refuse(self, span: Span) -> FerrumError | None:
        """Return why a span cannot use its adapters, or None; note that its sequence uses them."""
        return self.load().use(span.cache_id, span.adapters)

    def snapshot(self, stored: Collection[str]) -> LoraMetricsSnapshot:
        """Return the counters; `stored` are the ids of all sequences."""
        slots = self.slots
        if slots is None:
            return LoraMetricsSnapshot()
        return LoraMetricsSnapshot(loaded=slots.keys, active=slots.active(stored), nbytes=slots.nbytes)
