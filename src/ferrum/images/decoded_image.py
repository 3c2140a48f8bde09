"""`DecodedImage`: the pixels of an image, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as RGB.

    Attributes:
        pixels: [height, width, 3], never changed.
        digest: 32 bytes of SHA-256 over sizes and pixels: equal digests mean equal pixels.
    """

    pixels: NDArray[np.uint8] = field(compare=False, repr=False)
    digest: bytes
