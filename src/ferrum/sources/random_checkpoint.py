"""A checkpoint of random weights in a model's true shapes, for speed measurements.

Its output is meaningless; sizes, formats and the work of a step are real.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.models.decoder import parameter_shapes
from ferrum.models.families import decoder_spec
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.dense import FORMATS
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.model_source import ModelSource
from ferrum.sources.tensor_file import TensorInfo

DEVIATION: Final = 0.02
"""Standard deviation of the weights, the usual one of initialisation."""

EMBEDDING_DEVIATION: Final = 10.0
"""Standard deviation of an embedding that is not the head."""

_POOL: Final = 4_194_319
"""Random numbers drawn. A prime, so that no two rows of a matrix begin at the same one."""

_DTYPE: Final = "bfloat16"


class RandomCheckpoint(TensorStore, ModelSource):
    """Matrices of N(0, 0.02), norms of one, biases of zero, in bfloat16; a model without text.

    An embedding that is not the head is of N(0, 10). Layers add little to it, so rows stay different and choose
    different experts, as those of trained models do. Attention with random weights would make them alike (Dong et al.
    2021).

    A matrix is a run of one pool of random numbers, from an offset that its name decides, repeated if it is longer than
    the pool. So it is made at the speed of a copy, is the same in every process, and only the tensor being read takes
    memory.

    Args:
        name: used for the directory in messages.
        config: the values of a `config.json`.

    Attributes: see `TensorStore` and `ModelSource`.

    Raises:
        CheckpointError, Unsupported: as `decoder_spec`.
    """

    path = None

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.name, self.directory = name, Path(name)
        self.config = dict(config)
        self.headless = False
        self.tensors: dict[str, TensorInfo] = {}
        end = 0
        for tensor, shape in parameter_shapes(decoder_spec(config)).items():
            begin, end = end, end + 2 * math.prod(shape)
            self.tensors[tensor] = TensorInfo("BF16", shape, begin, end)
        numbers = np.random.Generator(np.random.PCG64(0)).standard_normal(_POOL, np.float32)
        self._pool = (DEVIATION * numbers).astype(FORMATS[_DTYPE])

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomCheckpoint, (self.name, self.config)

    def checkpoint(self) -> TensorStore:
        return self

    def digest(self, memory: Path) -> str:  # noqa: ARG002 - nothing is read
        """Return a digest of the configuration, on which every number depends."""
        return hashlib.sha256(f"random {json.dumps(self.config, sort_keys=True)}".encode()).hexdigest()

    def read(self, name: str) -> NDArray[Any]:
        shape = self.tensors[name].shape
        if len(shape) == 1:
            return np.full(shape, 0 if name.endswith(".bias") else 1, FORMATS[_DTYPE])
        flat = np.empty(math.prod(shape), FORMATS[_DTYPE])
        done, at = 0, zlib.crc32(name.encode()) % _POOL
        while done < len(flat):
            piece = self._pool[at : at + len(flat) - done]
            flat[done : done + len(piece)] = piece
            done, at = done + len(piece), 0
        if name == EMBEDDING and HEAD in self.tensors:
            flat *= flat.dtype.type(EMBEDDING_DEVIATION / DEVIATION)
        return flat.reshape(shape)
