"""The main function of a rank's process: it loads its part of a model, then runs the calls of rank 0.

One thread beats and watches the connection: when rank 0's process ends, however it does, this process leaves at once,
also from within a step.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, FerrumError, StepError, as_step_error
from ferrum.core.ranks import BEAT_SECONDS
from ferrum.kernels.interface import Kernels
from ferrum.kernels.operations import Bytes
from ferrum.models.rank_cuts import Ranks
from ferrum.runtime.load import RankPart, assemble
from ferrum.runtime.pool_sizes import PoolSizes
from ferrum.runtime.rank_messages import BEAT_BYTES, Agreed, Failed, Ready, Start, facts_of
from ferrum.runtime.rank_model import RankModel, StepEnded
from ferrum.sources.read_model import ReadModel


def child(rank: int, ranks: int, connection: int, memory: int) -> None:
    """Run a rank's process.

    Args:
        rank, ranks: which one this is, and how many there are.
        connection, memory: inherited descriptors: a socket to rank 0, and the memory that all share.
    """
    logging.disable(logging.WARNING)  # rank 0 has logged the same
    whole: Bytes = np.frombuffer(mmap.mmap(memory, 0), np.uint8)
    os.close(memory)
    exchanged = len(whole) - BEAT_BYTES * ranks
    beats = whole[exchanged:].view(np.int64)[:: BEAT_BYTES // 8]
    os.set_inheritable(connection, False)
    threading.Thread(target=_beat, args=(connection, beats, rank), daemon=True).start()
    end = Connection(connection)
    try:
        start = end.recv()
        model = _load(start, Ranks(ranks, rank), whole[:exchanged], lambda: end.send(Agreed()))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - rank 0 raises it
        end.send(Failed(_named(error, rank)))
        return
    end.send(Ready())
    while True:
        try:
            call = end.recv()
        except EOFError:
            return
        end.send(_answer(model, call))


def _answer(model: RankModel, call: Any) -> Any:
    try:
        return model.run(call)
    except StepEnded as error:
        return Failed(error)
    except Exception as error:  # noqa: BLE001 - rank 0 raises it
        return Failed(as_step_error(error))


def _named(error: Exception, rank: int) -> Exception:
    """Return an error of loading that names the rank, unless it is one that any rank raises."""
    return error if isinstance(error, FerrumError) else StepError(f"rank {rank}: {type(error).__name__}: {error}")


def _load(start: Start, ranks: Ranks, memory: Bytes, agree: Callable[[], None]) -> RankModel:
    """Return a rank's part of a model. Before weights are read, it compares what all ranks must have, and agrees."""

    def begin(model: ReadModel, kernels: Kernels, pool: PoolSizes) -> Bytes:  # noqa: ARG001 - rank 0 has sized it
        for name, ours in facts_of(model, kernels).items():
            if ours != start.facts[name]:
                reason = f"{name} is {ours}, and {start.facts[name]} on rank 0"
                raise CheckpointError(f"rank {ranks.rank} differs: {reason}")
        agree()
        return memory

    made = assemble(start.config, start.bounds, start.store, part=RankPart(ranks, begin, start.pool))
    assert made.exchange is not None
    return RankModel(made.lm.kernels, made.lm.network, made.lm.replay, made.lm.adapted, made.exchange)


def _beat(connection: int, beats: NDArray[np.int64], rank: int) -> None:
    """Count while rank 0's process lives; leave when it has ended."""
    gone = select.poll()
    gone.register(connection, 0)  # hang-ups are always reported
    while not gone.poll(1e3 * BEAT_SECONDS):
        beats[rank] += 1
    os._exit(0)
