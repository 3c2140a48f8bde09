"""What ranks in different processes say to each other while they load, and what they must have in common."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from ferrum.core.config import PAGE_SIZE, ModelConfig
from ferrum.core.version import installed_version
from ferrum.kernels.interface import Kernels
from ferrum.runtime.pool_sizes import PoolSizes
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.sources.read_model import ReadModel

MAX_ROWS: Final = 512
"""Default limit of tokens in one forward pass."""

BEAT_BYTES: Final = 64
"""Bytes of a rank's counter of beats, after the memory of exchanges."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Arguments of `load_executor` that `ModelConfig` lacks."""

    memory_pool_size: int | None = None
    page_size: int = PAGE_SIZE
    max_rows: int = MAX_ROWS
    run_ahead: int = 0
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """What a rank loads.

    Attributes:
        config, bounds: of the model.
        pool: of rank 0.
        facts: of rank 0, see `facts_of`.
        store: the tensors, if they are no files.
    """

    config: ModelConfig
    bounds: Bounds
    pool: PoolSizes
    facts: dict[str, str]
    store: RandomCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class Agreed:
    """A rank whose facts are those of rank 0, and which begins to read weights."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank that is loaded."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call, or the loading of a rank, that raised an error."""

    error: Exception


def facts_of(model: ReadModel, kernels: Kernels) -> dict[str, str]:
    """Return what must be equal on all ranks: their release, arithmetic and files, by configuration and headers."""
    wholes, tensors = model.asks.wholes, model.store.tensors  # which are a rank's parts
    headers = sorted((name, info.dtype, wholes.get(name, info.shape)) for name, info in tensors.items())
    files = json.dumps(model.store.config, sort_keys=True, default=str), repr(model.spec), repr(headers)
    return {
        "version": installed_version(),
        "kernels": kernels.name,
        "numerics_id": kernels.numerics_id,
        "files": hashlib.sha256("".join(files).encode()).hexdigest(),
    }
