"""The tensors of one quantised module in a checkpoint, checked against their headers before any is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.tensor_file import TensorInfo

FLOATS: Final = ("F16", "BF16", "F32")

DTYPES: Final = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
}
"""The dtypes of such tensors, as files spell them."""

Reader = Callable[[], NDArray[Any]]
"""Reads a tensor from the mapped file."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModuleParts:
    """A module's tensors by the last part of their names.

    Attributes:
        files: the checkpoint.
        stem: the module's name.
    """

    files: Checkpoint
    stem: str

    def has(self, part: str) -> bool:
        """Whether the module has a tensor."""
        return f"{self.stem}.{part}" in self.files.tensors

    def info(self, part: str) -> TensorInfo:
        """Return the place of a tensor. Raises CheckpointError if it is missing."""
        found = self.files.tensors.get(f"{self.stem}.{part}")
        if found is None:
            raise CheckpointError(f"{self.files.directory}: tensor '{self.stem}.{part}' is missing")
        return found

    def matrix(self, part: str) -> tuple[int, int]:
        """Return the shape of a tensor. Raises CheckpointError if it is no matrix."""
        shape = self.info(part).shape
        if len(shape) != 2 or 0 in shape:
            raise self.error(part, f"must be a matrix, not of shape {list(shape)}")
        return shape[0], shape[1]

    def expect(self, part: str, dtypes: str | tuple[str, ...], *shapes: Shape) -> Reader:
        """Return the reader of a tensor of one of these dtypes and shapes, as an array of the first shape.

        Raises:
            CheckpointError: it is missing, or has another dtype or shape.
        """
        info = self.info(part)
        known = (dtypes,) if isinstance(dtypes, str) else dtypes
        if info.dtype not in known:
            raise self.error(part, f"must be of dtype {' or '.join(known)}, not {info.dtype}")
        if info.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(part, f"expected shape {wanted}, found {list(info.shape)}")
        return lambda: self.read(part).reshape(shapes[0])

    def read(self, part: str) -> NDArray[Any]:
        """Return a tensor of a dtype in `DTYPES` as a view of the mapped file."""
        info = self.info(part)
        flat: NDArray[Any] = self.files.read_bytes(f"{self.stem}.{part}").view(DTYPES[info.dtype])
        return flat.reshape(info.shape)

    def error(self, part: str, problem: str) -> CheckpointError:
        """Return an error that names a tensor."""
        name = f"{self.stem}.{part}"
        return CheckpointError(f"{self.files.directory}: tensor {name!r} in {self.files.file_of(name)}: {problem}")
