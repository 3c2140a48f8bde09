"""Images of Gemma 3 (Gemma Team 2025, section 2.1): one square of one size, whose tokens see each other.

Pan and scan, which adds crops of long images, is off in all published models, and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_processor import Frame, ImageRun
from ferrum.images.pixels import block_patches, levels_of, resized

BEGIN: Final = "<start_of_image>"
"""The text that stands for an image in a prompt."""

SPACING: Final = "\n\n"
"""What the processor of `transformers` writes before and after an image."""

_BILINEAR: Final = 2
_HALF: Final = (0.5, 0.5, 0.5)


class Gemma3Images:
    """The `ImageFamily` of Gemma 3.

    Args:
        values: of `preprocessor_config.json`.
        patch, side, merge: edge of a patch in pixels; patches per side of an image, and of a row.
        token_of: returns the id of a special token.

    Raises:
        CheckpointError: a field is invalid, or contradicts the tower.
        Unsupported: a step is switched off, or pan and scan on.
    """

    version = "gemma3-1"

    def __init__(
        self, values: Mapping[str, Any], patch: int, side: int, merge: int, token_of: Callable[[str], int]
    ) -> None:
        self.placeholder, soft, end = map(token_of, (BEGIN, "<image_soft_token>", "<end_of_image>"))
        if values.get("do_pan_and_scan"):
            raise Unsupported("preprocessor_config.json: do_pan_and_scan=True", "crops of images are not implemented")
        self._patch, self._merge, self._edge = patch, merge, patch * side
        size = values.get("size", {"height": 224, "width": 224})
        if size != {"height": self._edge, "width": self._edge}:
            reason = f"must be the tower's height and width of {self._edge}, got {size!r}"
            raise CheckpointError(f"preprocessor_config.json: size: {reason}")
        self._levels = levels_of(values, _BILINEAR, _HALF, _HALF)
        rows = (side // merge) ** 2
        self._run = ImageRun((self.placeholder, *(soft,) * rows, end), tuple(range(1, rows + 1)), bidirectional=True)
        self.settings = f"{self._edge} {self._levels.filter} {self._levels.table.tobytes()!r}"

    def run_of(self, width: int, height: int) -> ImageRun:  # noqa: ARG002 - all images are as long
        return self._run

    def frames(self, image: DecodedImage) -> tuple[Frame, ...]:
        pixels = resized(image.pixels, self._edge, self._edge, self._levels.filter)
        patches, places = block_patches(self._levels.of(pixels), self._patch, self._merge)
        return (Frame(patches, (places[:, 0] * (self._edge // self._patch) + places[:, 1]).astype(np.int32)),)
