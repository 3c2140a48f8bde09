"""Images of Qwen3-VL and Qwen3.5: one frame of any shape, in whole rows and columns of tokens (Bai et al. 2025)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ferrum.core.errors import CheckpointError, RequestError
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_processor import Frame, ImageRun
from ferrum.images.pixels import block_patches, levels_of, resized

MAX_TOKENS: Final = 4096
"""Most tokens of an image, as in llama.cpp. Files allow four times as many; their images are reduced to these."""

_MAX_RATIO: Final = 200
_BICUBIC: Final = 3
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)
_EDGES: Final = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
_OLD_NAMES: Final = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}


class QwenImages:
    """The `ImageFamily` of Qwen3-VL and Qwen3.5.

    Args:
        values: of `preprocessor_config.json`.
        patch, merge, repeats: edge of a patch in pixels; patches per side of a token; how often a patch has its pixels.
        token_of: returns the id of a special token.

    Raises:
        CheckpointError: a field is invalid, or contradicts the tower.
        Unsupported: a step is switched off.
    """

    version = "qwen3-vl-1"

    def __init__(
        self, values: Mapping[str, Any], patch: int, merge: int, repeats: int, token_of: Callable[[str], int]
    ) -> None:
        self.placeholder = token_of("<|image_pad|>")
        self._levels = levels_of(values, _BICUBIC, _MEAN, _DEVIATION)
        self._patch, self._merge, self._repeats, self._unit = patch, merge, repeats, patch * merge
        for name, ours in (("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", repeats)):
            if values.get(name, ours) != ours:
                raise CheckpointError(f"preprocessor_config.json: {name}={values[name]!r}, but the tower has {ours}")
        self._least, self._most = pixels_of(values, self._unit)
        self.settings = (
            f"{self._least} {self._most} {patch} {merge} {self._levels.filter} {self._levels.table.tobytes()!r}"
        )

    def run_of(self, width: int, height: int) -> ImageRun:
        rows, columns = self._grid(width, height)
        count = rows * columns
        return ImageRun((self.placeholder,) * count, tuple(range(count)), (rows, columns))

    def frames(self, image: DecodedImage) -> tuple[Frame, ...]:
        height, width = image.pixels.shape[:2]
        rows, columns = self._grid(width, height)
        pixels = resized(image.pixels, rows * self._unit, columns * self._unit, self._levels.filter)
        patches, by_axis = block_patches(self._levels.of(pixels), self._patch, self._merge)
        # A patch has the pixels of several frames of a video, channel by channel.
        repeated = np.repeat(patches.reshape(len(patches), 3, 1, -1), self._repeats, axis=2).reshape(len(patches), -1)
        places = np.zeros((len(by_axis), 3), np.int32)
        places[:, 1:] = by_axis
        return (Frame(repeated, places[:, 0].copy(), places),)

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the rows and columns of tokens (`smart_resize` of Qwen). Raises RequestError."""
        if max(width, height) > _MAX_RATIO * min(width, height):
            reason = f"{width} x {height} pixels: the longer side may be at most {_MAX_RATIO} times the shorter one"
            raise RequestError(reason, param="images")
        unit, pixels = self._unit, width * height
        rows, columns = round(height / unit), round(width / unit)
        if rows * columns * unit**2 > self._most:
            shrink = math.sqrt(pixels / self._most)
            rows, columns = (max(1, math.floor(size / shrink / unit)) for size in (height, width))
        elif rows * columns * unit**2 < self._least:
            grow = math.sqrt(self._least / pixels)
            rows, columns = (math.ceil(size * grow / unit) for size in (height, width))
        return rows, columns


def pixels_of(values: Mapping[str, Any], unit: int) -> tuple[int, int]:
    """Return the least and the most pixels of a resized image, the most within `MAX_TOKENS`. Raises CheckpointError.

    Args:
        values: of `preprocessor_config.json`.
        unit: edge of a token in pixels.
    """
    size = values.get("size")
    found = {**_EDGES, **(size if isinstance(size, Mapping) else {})}
    least, most = (values[old] if values.get(old) is not None else found.get(name) for name, old in _OLD_NAMES.items())
    if type(least) is not int or type(most) is not int or not 0 < least <= most or most < unit**2:
        reason = f"size must have a shortest_edge up to its longest_edge, both in pixels, got {least!r} and {most!r}"
        raise CheckpointError(f"preprocessor_config.json: {reason}")
    return least, min(most, MAX_TOKENS * unit**2)
