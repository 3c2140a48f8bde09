"""`AdaptedSteps`: the program of a model's steps with adapters, made with the first adapter."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ferrum.core.errors import FerrumError
from ferrum.core.snapshots import LoraMetricsSnapshot
from ferrum.core.step import Span
from ferrum.kernels.interface import Kernels, Network, Replay
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.recorded_program import record
from ferrum.runtime.adapters.adapted_network import AdaptedNetwork
from ferrum.runtime.adapters.adapter_slots import AdapterSlots


class AdaptedSteps:
    """Steps with adapters of one model. Until `load` nothing is recorded, and no buffer allocated.

    Args:
        network, kernels: of the model.
        limits: rows of a pass; None walks the network at each step.

    Attributes:
        network, replay: of steps with adapters.
        slots: the adapters; None before `load`.
    """

    def __init__(self, network: Network, kernels: Kernels, limits: Mapping[Extent, int] | None) -> None:
        self.network = network
        self._kernels, self._limits = kernels, limits
        self.replay: Replay | None = None
        self.slots: AdapterSlots | None = None

    def load(self) -> AdapterSlots:
        """Return the adapters. The first call records the program and allocates its buffers."""
        if self.slots is None:
            network = AdaptedNetwork(self.network)
            program = record(network)
            self.replay = None if self._limits is None else self._kernels.prepare(program, self._limits)
            self.network, self.slots = network, AdapterSlots(self._kernels, network.sites.found.values())
        return self.slots

    def refuse(self, span: Span) -> FerrumError | None:
        """Return why a span cannot use its adapters, or None."""
        return self.load().refuse(span.adapters)

    def snapshot(self, used: Collection[str]) -> LoraMetricsSnapshot:
        """Return the counters; `used` are the keys of all sequences' adapters."""
        slots = self.slots
        if slots is None:
            return LoraMetricsSnapshot()
        active = tuple(key for key in slots.keys if key in used)
        return LoraMetricsSnapshot(loaded=slots.keys, active=active, nbytes=slots.nbytes)
