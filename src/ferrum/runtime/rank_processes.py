"""The ranks of a model in processes of this machine: how they begin, what ends them, and their loss.

Rank 0 is in this process. Each other rank is a child that loads its part of the model (`rank_worker.py`), is sent one
message a step, and exchanges columns with all through one piece of memory. The memory has no name, so nothing is left
of it when the last process ends. A child ends with this process, however this one ends.

The processes start from the interpreter's command line: `multiprocessing` would run the caller's main script again.
Those of torchrun are there already (`launched_ranks.py`).
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import numpy as np

from ferrum.core.config import ModelConfig, awaited_ranks
from ferrum.core.errors import EngineDead
from ferrum.core.ranks import BEAT_SECONDS, SILENT_BEATS
from ferrum.kernels.exchange import RankExchange, memory_bytes
from ferrum.kernels.interface import Kernels
from ferrum.kernels.operations import Bytes
from ferrum.models.rank_cuts import Ranks
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.launched_ranks import joining
from ferrum.runtime.pool_sizes import PoolSizes
from ferrum.runtime.rank_messages import BEAT_BYTES, Agreed, Bounds, Failed, Ready, Start, facts_of
from ferrum.runtime.rank_model import OtherRank, RankCall, RankModel
from ferrum.runtime.sharded_replay import KeptHeads, ShardedReplay
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.sources.read_model import ReadModel

_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from ferrum.runtime.rank_worker import child; child({rank}, {ranks}, {connection}, {memory})"
)

LAST_STEP: Final = (1 << 31) - 1
"""A step that no executor reaches: if it is ended, all are."""

_END_SECONDS: Final = 2.0

_START_SECONDS: Final = 120.0
"""Limit until a process has started, read the model's headers and compared them, on a busy machine as well."""


class RankLost(EngineDead):
    """A rank that has died or does not answer. Its executor computes nothing more."""


class RankProcess(Protocol):
    """The process of a rank."""

    @property
    def pid(self) -> int:
        """Its number."""

    def kill(self) -> None:
        """End it at once, if it has not ended."""

    def close(self) -> None:
        """Let it end, since its connection is about to be closed."""

    def status(self) -> int | None:
        """Return the exit code of a process that has just ended; None if it is not known."""


class ChildProcess:
    """A process that this one has started.

    Args:
        number, ranks: which rank it is, and how many there are.
        connection, memory: descriptors that it inherits.
    """

    def __init__(self, number: int, ranks: int, connection: int, memory: int) -> None:
        program = _PROGRAM.format(path=sys.path, rank=number, ranks=ranks, connection=connection, memory=memory)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=[connection, memory],
            start_new_session=True,  # Ctrl-C reaches its parent only
        )
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def status(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        return self._process.returncode


class LaunchedProcess:
    """A process of torchrun, which waits for its end and reports its exit code."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave it to the process, which ends as its connection does: torchrun takes a killed one for a failure."""

    def status(self) -> None:
        return None


class ProcessRank(OtherRank):
    """A rank in another process.

    Args:
        number: of the rank.
        process: where it runs.
        connection: to it.

    Attributes:
        error: why it is lost, or None.
    """

    def __init__(self, number: int, process: RankProcess, connection: Connection) -> None:
        self.number, self.process, self.connection = number, process, connection
        self.error: RankLost | None = None

    def start(self, call: RankCall) -> None:
        self.send(call)

    def send(self, item: object) -> None:
        """Send a message. Raises RankLost."""
        if self.error is not None:
            raise self.error
        try:
            self.connection.send(item)
        except OSError:
            raise self.lost() from None

    def result(self) -> Any:
        answer = self.receive()
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def receive(self) -> Any:
        """Return the next answer. Raises RankLost."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            raise self.lost() from None

    def agree(self) -> None:
        """Wait until the rank has compared its release and its files. Raises what it raised, or RankLost."""
        if not self.connection.poll(_START_SECONDS):
            raise self.lost(f"did not start within {_START_SECONDS:g} s")
        assert isinstance(self.result(), Agreed)

    def lost(self, reason: str = "") -> RankLost:
        """Return why the rank is lost; without a reason, how its process has ended."""
        if self.error is None:
            if not reason:
                status = self.process.status()
                reason = "ended" if status is None else f"ended with exit code {status}"
                reason = f"was ended by signal {-status}" if status and status < 0 else reason
            self.error = RankLost(f"rank {self.number} (process {self.process.pid}) {reason}")
        return self.error

    def close(self) -> None:
        self.process.close()
        with suppress(OSError):
            self.connection.close()


class RankProcesses:
    """All ranks of a model but the first, while it loads and while it runs.

    Args:
        config, bounds: of the model, see `runtime.load`.
        store: its tensors, if they are given.
    """

    def __init__(self, config: ModelConfig, bounds: Bounds, store: TensorStore | None = None) -> None:
        self._config, self._bounds = config, bounds
        self._store = store if isinstance(store, RandomCheckpoint) else None  # others have files
        self.ranks = Ranks(config.tensor_parallel_size)
        self._others: tuple[ProcessRank, ...] = ()
        self._exchange: RankExchange | None = None
        self._beats = np.zeros(0, np.int64)
        self._over = threading.Event()
        self._on_loss: list[Callable[[RankLost], None]] = []
        weakref.finalize(self, self._over.set)

    def begin(self, model: ReadModel, kernels: Kernels, pool: PoolSizes) -> Bytes:
        """Start the other ranks, which load while this one does, and return the shared memory.

        Raises what a rank has raised that differs, before this one reads weights.
        """
        exchanged = memory_bytes(self.ranks.count, model.asks.widest)
        descriptor, memory = _shared(exchanged + BEAT_BYTES * self.ranks.count)
        self._beats = memory[exchanged:].view(np.int64)[:: BEAT_BYTES // 8]
        config = replace(self._config, model=str(model.store.directory))
        start = Start(config, self._bounds, pool, facts_of(model, kernels), self._store)
        try:
            others = _joined if awaited_ranks() else _started
            for rank in others(self.ranks.count, descriptor):
                self._others += (rank,)
        finally:
            os.close(descriptor)
        for rank in self._others:
            rank.send(start)
        for rank in self._others:
            rank.agree()
        return memory[:exchanged]

    def ready(self, lm: DecoderLM, exchange: RankExchange, kept: Mapping[str, KeptHeads]) -> ShardedReplay:
        """Wait until all ranks are loaded, and return what runs them. Raises what a rank has raised, with its name.

        Args:
            lm, exchange: of the first rank.
            kept: see `ShardedReplay`.
        """
        for rank in self._others:
            answer = rank.receive()
            if isinstance(answer, Failed):
                raise answer.error
            assert isinstance(answer, Ready)
        self._exchange = exchange
        first = RankModel(lm.kernels, lm.network, lm.replay, lm.adapted, exchange)
        ranks = ShardedReplay(first, lm.replay, self._others, kept, self.close)
        threading.Thread(target=self._watch, name="ferrum-ranks", daemon=True).start()
        return ranks

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        """Call with the error when a rank is lost, from another thread; at once if one is."""
        self._on_loss.append(call)
        for rank in self._others:
            if rank.error is not None:
                call(rank.error)

    def close(self) -> None:
        """End all other ranks. Idempotent."""
        self._over.set()
        for rank in self._others:
            rank.close()

    def _watch(self) -> None:
        """Notice a rank that ends, or whose beats stop, until `close`."""
        gone = select.poll()
        by_descriptor = {rank.connection.fileno(): rank for rank in self._others}
        for descriptor in by_descriptor:
            gone.register(descriptor, 0)  # hang-ups are always reported
        last, silent = self._beats.copy(), np.zeros(len(self._beats), np.int64)
        while not self._over.is_set():
            hung = gone.poll(1e3 * BEAT_SECONDS)
            silent = np.where(self._beats == last, silent + 1, 0)
            last = self._beats.copy()
            mute = [rank for rank in self._others if silent[rank.number] > SILENT_BEATS]
            if self._over.is_set() or not (hung or mute):
                continue
            if hung:
                self._lose(by_descriptor[hung[0][0]])
            else:
                self._lose(mute[0], f"did not answer for {SILENT_BEATS * BEAT_SECONDS:g} s")
            return

    def _lose(self, rank: ProcessRank, reason: str = "") -> None:
        """End the steps of all ranks, since one is lost."""
        error = rank.lost(reason)
        for each in self._others:
            each.error = error
        assert self._exchange is not None
        self._exchange.end(LAST_STEP)
        for each in self._others:
            each.process.kill()
        for call in self._on_loss:
            call(error)


def _started(ranks: int, memory: int) -> Iterator[ProcessRank]:
    """Start the other ranks as children, with the descriptor of the shared memory."""
    for number in range(1, ranks):
        here, there = socket.socketpair()
        with there:  # close our copy, so that the connection ends with the process
            process = ChildProcess(number, ranks, there.fileno(), memory)
        yield ProcessRank(number, process, Connection(here.detach()))


def _joined(ranks: int, memory: int) -> Iterator[ProcessRank]:
    """Wait for the other ranks of torchrun, with the descriptor of the shared memory."""
    with joining(ranks, memory) as found:
        for number, each in sorted(found.items()):
            yield ProcessRank(number, LaunchedProcess(each.pid), Connection(each.connection.detach()))


def _shared(nbytes: int) -> tuple[int, Bytes]:
    """Return a descriptor of zeroed memory without a name, and the memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ferrum-ranks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor, np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
