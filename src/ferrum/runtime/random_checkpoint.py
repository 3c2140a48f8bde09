"""A checkpoint that lies in no file: random weights of a model's true shapes, for measurements of speed.

What such a model says is no sense: only sizes, formats and the work of a step are real.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.models.decoder import parameter_shapes
from ferrum.models.families import decoder_spec
from ferrum.quant.dense import FORMATS
from ferrum.runtime.tensor_file import TensorInfo

DEVIATION: Final = 0.02
"""Standard deviation of the weights: what models are initialised with."""

_POOL: Final = 4_194_319
"""Random numbers that are really drawn. Prime, so that no two rows of a matrix begin at the same one."""

_DTYPE: Final = "bfloat16"


class RandomCheckpoint:
    """Matrices of N(0, 0.02), norms of one, biases of zero: a `TensorStore` in bfloat16.

    A matrix is a run of one pool of random numbers, begun at a place that its name decides and repeated where it is
    longer than the pool. So it is made as fast as memory is copied, is the same in every process, and only the tensor
    that is being read takes memory.

    Args:
        name: stands for the directory in messages.
        config: a `config.json`'s values.

    Attributes: see `TensorStore`.

    Raises:
        CheckpointError, Unsupported: as `decoder_spec`.
    """

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.directory = Path(name)
        self.config = dict(config)
        self.headless = False
        self.tensors: dict[str, TensorInfo] = {}
        end = 0
        for tensor, shape in parameter_shapes(decoder_spec(config)).items():
            begin, end = end, end + 2 * math.prod(shape)
            self.tensors[tensor] = TensorInfo("BF16", shape, begin, end)
        numbers = np.random.Generator(np.random.PCG64(0)).standard_normal(_POOL, np.float32)
        self._pool = (DEVIATION * numbers).astype(FORMATS[_DTYPE])

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    def file_of(self, name: str) -> str:
        """What stands for a tensor's file in messages."""
        return f"{self.directory} ({name})"

    def read(self, name: str) -> NDArray[Any]:
        """The tensor of that name, made anew."""
        shape = self.tensors[name].shape
        if len(shape) == 1:
            return np.full(shape, 0 if name.endswith(".bias") else 1, FORMATS[_DTYPE])
        flat = np.empty(math.prod(shape), FORMATS[_DTYPE])
        done, at = 0, zlib.crc32(name.encode()) % _POOL
        while done < len(flat):
            piece = self._pool[at : at + len(flat) - done]
            flat[done : done + len(piece)] = piece
            done, at = done + len(piece), 0
        return flat.reshape(shape)

    def forget(self, name: str) -> None:
        """Nothing is kept of a tensor that was read."""
