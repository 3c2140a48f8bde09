"""`RankModel`: what one rank of a model does. Nothing here knows where the rank is, or where the others are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.exchange import RankExchange
from ferrum.kernels.interface import Kernels, Network, NetworkOutput, Replay, StepTables
from ferrum.kernels.operations import Bytes
from ferrum.kernels.recorded_program import run_eager
from ferrum.runtime.adapters.adapted_network import AdaptedSteps

Result = TypeVar("Result")


class RankCall(NamedTuple):
    """A call of a method of `RankModel`. It can be pickled."""

    method: str
    arguments: tuple[Any, ...]


class StepEnded(Exception):
    """A step that ended on this rank because another one has failed in it."""


class OtherRank(Protocol):
    """A rank in another thread or process than the first. One call at a time."""

    def start(self, call: RankCall) -> None:
        """Begin a call. Raises EngineDead if the rank is lost."""

    def result(self) -> Any:
        """Wait for the call and return its result. Raises what it has raised, and EngineDead if the rank is lost."""

    def close(self) -> None:
        """End the rank. Idempotent."""


class RankModel:
    """A rank: its kernels with a part of the heads in their pool, its network and its program.

    Args:
        kernels, network: of the rank.
        replay: its program; None walks the network at each step.
        adapted: its steps with adapters.
        exchange: with the other ranks.

    Attributes:
        output: of the last step, the same on every rank.
    """

    def __init__(
        self,
        kernels: Kernels,
        network: Network,
        replay: Replay | None,
        adapted: AdaptedSteps,
        exchange: RankExchange,
    ) -> None:
        self.kernels, self.exchange = kernels, exchange
        self._network, self._replay, self._adapted = network, replay, adapted
        self.output: NetworkOutput | None = None

    def run(self, call: RankCall) -> Any:
        """Run a call and return its result."""
        return getattr(self, call.method)(*call.arguments)

    def compute(self, step: int, tables: StepTables) -> None:
        """Run a step, whose number is larger than those before it. If it raises, it ends on every rank."""
        self.output = self._together(step, lambda: self._forward(tables))

    def timed(self, step: int, tables: StepTables) -> list[float]:
        """Run a step and return the seconds of each operation."""
        assert self._replay is not None, "a network that is walked has no operations"
        replay = self._replay
        return self._together(step, lambda: replay.timed(self.kernels, tables))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        self.kernels.copy_pages(copies)

    def read_page(self, group: str, page: int) -> Bytes:
        return self.kernels.read_page(group, page)

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        self.kernels.write_page(group, page, data)

    def adapters(self, method: str, *arguments: Any) -> Any:
        """Call a method of the rank's `AdapterSlots`."""
        return getattr(self._adapted.load(), method)(*arguments)

    def exchanged(self) -> int:
        """Return the bytes that this rank has read from others so far."""
        return self.exchange.bytes_read

    def _forward(self, tables: StepTables) -> NetworkOutput:
        network, replay = self._network, self._replay
        if tables.adapters:
            network, replay = self._adapted.network, self._adapted.replay
        return run_eager(network, self.kernels, tables) if replay is None else replay.submit(self.kernels, tables)

    def _together(self, step: int, run: Callable[[], Result]) -> Result:
        """Run a part of a step. Raises StepEnded if another rank has failed."""
        self.exchange.begin(step)
        try:
            made = run()
        except BaseException:
            self.exchange.end(step)
            raise
        if self.exchange.ended:
            raise StepEnded("another rank has failed in this step")
        return made
