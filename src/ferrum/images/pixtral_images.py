"""Images of Pixtral and Mistral 3: one frame of any size, and a token after each row of it (Agrawal et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ferrum.core.errors import CheckpointError
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_processor import Frame, ImageRun
from ferrum.images.pixels import block_patches, edge_of, levels_of, resized

_BICUBIC: Final = 3
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)


class PixtralImages:
    """The `ImageFamily` of Pixtral and Mistral 3.

    Args:
        values: of `preprocessor_config.json`.
        patch, side, merge: edge of a patch in pixels; places per side of the tower; patches per side of a row.
        token_of: returns the id of a special token.

    Raises:
        CheckpointError: a field is invalid.
        Unsupported: a step is switched off.
    """

    version = "pixtral-1"

    def __init__(
        self, values: Mapping[str, Any], patch: int, side: int, merge: int, token_of: Callable[[str], int]
    ) -> None:
        self.placeholder, self._break, self._end = map(token_of, ("[IMG]", "[IMG_BREAK]", "[IMG_END]"))
        self._edge = edge_of(values, "size", 1024)
        self._levels = levels_of(values, _BICUBIC, _MEAN, _DEVIATION)
        self._patch, self._side, self._merge = patch, side, merge
        if ((self._edge - 1) // (patch * merge) + 1) * merge > side:
            reason = f"longest_edge {self._edge} is larger than the tower's {side} patches of {patch} pixels"
            raise CheckpointError(f"preprocessor_config.json: size: {reason}")
        self.settings = f"{self._edge} {self._levels.filter} {self._levels.table.tobytes()!r}"

    def run_of(self, width: int, height: int) -> ImageRun:
        down, across = self._grid(width, height)
        tokens = ([self.placeholder] * across + [self._break]) * down
        tokens[-1] = self._end
        rows = tuple(index for index, token in enumerate(tokens) if token == self.placeholder)
        return ImageRun(tuple(tokens), rows)

    def frames(self, image: DecodedImage) -> tuple[Frame, ...]:
        height, width = image.pixels.shape[:2]
        unit = self._patch * self._merge
        down, across = self._grid(width, height)
        pixels = resized(image.pixels, down * unit, across * unit, self._levels.filter)
        patches, places = block_patches(self._levels.of(pixels), self._patch, self._merge)
        return (Frame(patches, (places[:, 0] * self._side + places[:, 1]).astype(np.int32)),)

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the rows and columns of tokens: an image is never enlarged by more than a part of one."""
        ratio = max(height / self._edge, width / self._edge)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        unit = self._patch * self._merge
        return (max(height, 1) - 1) // unit + 1, (max(width, 1) - 1) // unit + 1
