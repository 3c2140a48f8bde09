"""Ranks in processes that torchrun has started, for `ferrum run`, `chat` and `serve`.

Every process runs the same command. That of rank 0 is the only one that reads it. Each other process waits for the path
of a socket, which rank 0 announces through the store of `torch.distributed`, and gets the shared memory there. From
there on it is a rank as one that rank 0 starts itself (`rank_processes.py`); nothing else goes through PyTorch.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferrum.core.config import torchrun_variables
from ferrum.core.errors import ConfigError, EngineDead, Unsupported
from ferrum.core.ranks import Launch

_KEY: Final = "ferrum/socket"
_WAIT: Final = timedelta(minutes=30)
"""Limit until rank 0 has found its model. It may download it, and torchrun ends all ranks when one fails."""

_JOIN_SECONDS: Final = 120.0
_GREETING: Final = struct.Struct("<ii")
"""What a rank says when it joins: its number and its process."""


class Joined(NamedTuple):
    """A rank that has joined: its process, and its end of a socket."""

    pid: int
    connection: socket.socket


@contextmanager
def joining(ranks: int, memory: int) -> Iterator[dict[int, Joined]]:
    """Announce a socket and give each rank that joins the shared memory; the sockets are open afterwards.

    Args:
        memory: its descriptor.

    Raises:
        ConfigError: a rank did not come, or the address of torchrun's store is in use.
        Unsupported: without PyTorch.
    """
    with tempfile.TemporaryDirectory(prefix="ferrum-ranks-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder, "socket"))
        listener.bind(path)
        listener.listen(ranks)
        listener.settimeout(_JOIN_SECONDS)
        store = _store(Launch(0, ranks))  # held until all have read it
        store.set(_KEY, path)
        joined: dict[int, Joined] = {}
        while len(joined) < ranks - 1:
            try:
                end, _ = listener.accept()
            except TimeoutError:
                missing = next(rank for rank in range(1, ranks) if rank not in joined)
                reason = f"rank {missing} did not come within {_JOIN_SECONDS:g} s; start all ranks on this machine"
                raise ConfigError(reason, param="WORLD_SIZE") from None
            rank, pid = _greeted(end)
            if rank in joined:
                raise ConfigError(f"two processes are rank {rank}", param="RANK")
            socket.send_fds(end, [b"\0"], [memory])
            joined[rank] = Joined(pid, end)
        yield joined


def join(launch: Launch, child: Callable[[int, int, int, int], None]) -> None:
    """Be a rank until rank 0 ends.

    Signals that torchrun sends to all end a rank that waits for rank 0. Once it has joined, they are left to rank 0,
    which ends its requests.

    Args:
        child: runs a rank (`rank_worker.py`).

    Raises:
        ConfigError: rank 0 is on another machine.
        EngineDead: rank 0 has ended before it announced a socket.
        Unsupported: without PyTorch.
    """
    _on_signals(signal.SIG_DFL)  # a handler in Python would not run while the store is waited for
    try:
        path = bytes(_store(launch).get(_KEY)).decode()
    except RuntimeError as error:
        raise EngineDead(f"rank 0 has ended: {str(error).splitlines()[0]}") from None
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(_JOIN_SECONDS)
    try:
        end.connect(path)
    except OSError:
        reason = f"rank {launch.rank} cannot reach rank 0 at {path}: start all ranks on one machine"
        raise ConfigError(reason, param="MASTER_ADDR") from None
    end.sendall(_GREETING.pack(launch.rank, os.getpid()))
    _on_signals(signal.SIG_IGN)
    _, descriptors, _, _ = socket.recv_fds(end, 1, 1)
    if not descriptors:
        raise EngineDead("rank 0 has ended while this rank joined")
    end.settimeout(None)
    child(launch.rank, launch.ranks, end.detach(), descriptors[0])


def _on_signals(handler: signal.Handlers) -> None:
    """Let Ctrl-C and SIGTERM end this process, or have no effect on it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _greeted(end: socket.socket) -> tuple[int, int]:
    """Return the number and the process of a rank that joins. Raises ConfigError if it says nothing."""
    end.settimeout(_JOIN_SECONDS)
    greeting = b""
    while len(greeting) < _GREETING.size:
        found = end.recv(_GREETING.size - len(greeting))
        if not found:
            raise ConfigError("a rank has ended while it joined", param="WORLD_SIZE")
        greeting += found
    end.settimeout(None)
    rank, pid = _GREETING.unpack(greeting)
    return rank, pid


def _store(launch: Launch) -> Any:
    """Return the store through which torchrun's processes find each other."""
    try:
        from torch import distributed
    except ModuleNotFoundError:
        raise Unsupported("torchrun", "ranks meet through PyTorch: pip install 'ferrum-llm[parallel]'") from None
    try:
        store, _, _ = next(distributed.rendezvous("env://", *launch, timeout=_WAIT))
    except (RuntimeError, ValueError) as error:
        place = ":".join(torchrun_variables()[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
        reason = f"ranks cannot meet at {place}: {str(error).splitlines()[0]}; choose another --master-port"
        raise ConfigError(reason, param="MASTER_PORT") from None
    return store
