"""`DecodedImage`: the pixels of an image, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as RGB.

    Attributes:
        pixels: [height, width, 3].
        digest: 32 bytes of SHA-256 over sizes and pixels.
    """

    pixels: NDArray[np.uint8]
    digest: bytes
