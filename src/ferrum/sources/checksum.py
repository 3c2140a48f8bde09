"""Checksums of the tensors of packed directories. They find damage, not tampering."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.reference import page_sums
from ferrum.kernels.services import PageSums


def checksum(data: NDArray[np.uint8], sums: PageSums = page_sums) -> int:
    """Return the checksum of a tensor's bytes: CRC-32 of its pages' sums."""
    return zlib.crc32(sums(data).astype("<u8").tobytes())
