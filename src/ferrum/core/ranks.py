"""What each process knows of a model on several ranks: how long one may be silent, and which one torchrun made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ferrum.core.errors import ConfigError

BEAT_SECONDS: Final = 0.5
"""Interval of the beats of ranks, and of looks at them."""

SILENT_BEATS: Final = 7
"""Beats in a row that a rank may miss. They are counted, so that a machine that sleeps loses no rank."""

_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Launch(NamedTuple):
    """What torchrun says of this process."""

    rank: int
    ranks: int


def launched(environment: Mapping[str, str]) -> Launch | None:
    """Return which of several ranks this process is for torchrun; None without its variables.

    Raises:
        ConfigError: a variable is no number, or the ranks are on several machines.
    """
    if not all(name in environment for name in _VARIABLES):
        return None
    rank, ranks = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
    if ranks == 1:
        return None
    if rank >= ranks:
        raise ConfigError(f"must be below WORLD_SIZE={ranks}, not {rank}", param="RANK")
    local = _number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else ranks
    if local != ranks:
        reason = f"ranks share memory, and {local} of WORLD_SIZE={ranks} are here: start torchrun on one machine"
        raise ConfigError(reason, param="LOCAL_WORLD_SIZE")
    return Launch(rank, ranks)


def check_launched(waiting: int, tensor_parallel_size: int, replicas: int) -> None:
    """Raise ConfigError if an engine would not use the ranks of torchrun that wait for its model."""
    if not waiting:
        return
    if waiting != tensor_parallel_size:
        reason = f"must be {waiting}, the processes that torchrun has started, not {tensor_parallel_size}"
        raise ConfigError(reason, param="tensor_parallel_size")
    if replicas != 1:
        raise ConfigError("must be 1 under torchrun, whose processes are the ranks of one engine", param="replicas")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"must be a number, as torchrun sets it, not {text!r}", param=name)
    return int(text)
