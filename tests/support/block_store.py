"""A checkpoint with matrices in blocks of one format and fixed numbers, and the vectors of a directory."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockWeight
from ferrum.runtime.known_answers import Inputs, fixed_weight
from ferrum.sampling.philox import fixed_numbers
from ferrum.sources.checkpoint import Checkpoint, TensorStore


def fixed_blocks(name: str, format: str, shape: tuple[int, ...]) -> BlockWeight:
    """Return a matrix that depends on these only."""
    outputs, inputs = shape
    numbers = Inputs(fixed_numbers(1 << 14, seed=zlib.crc32(name.encode())))
    return fixed_weight(BLOCK_FORMATS[format], (outputs, inputs), numbers)


class BlockStore(TensorStore):
    """The vectors of a directory, with matrices in blocks."""

    def __init__(self, directory: Path, format: str) -> None:
        self._files = Checkpoint(directory)
        self._format = format
        self.directory, self.config = directory, self._files.config
        self.tensors, self.headless = self._files.tensors, self._files.headless

    def read(self, name: str) -> NDArray[Any]:
        return self._files.read(name)

    def block_format(self, name: str) -> str | None:
        return self._format if len(self.tensors[name].shape) == 2 else None

    def blocks(self, name: str) -> BlockWeight:
        return fixed_blocks(name, self._format, self.tensors[name].shape)
