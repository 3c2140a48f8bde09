"""Images of Gemma 4 (Gemma Team 2026): one frame that keeps its shape, and fills a number of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ferrum.core.errors import CheckpointError, RequestError
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_processor import Frame, ImageRun
from ferrum.images.pixels import Levels, block_patches, levels_of, resized

_BICUBIC: Final = 3
_BUDGETS: Final = (70, 140, 280, 560, 1120)
_ZEROS: Final = (0.0, 0.0, 0.0)
_ONES: Final = (1.0, 1.0, 1.0)


class Gemma4Images:
    """The `ImageFamily` of Gemma 4.

    Its processor leaves levels between 0 and 1, and the tower begins with 2 (x - 0.5); here both are one table.

    Args:
        values: of `preprocessor_config.json`.
        patch, merge: edge of a patch in pixels; patches per side of a row.
        token_of: returns the id of a special token.
        bidirectional: the rows of an image see each other.

    Raises:
        CheckpointError: a field is invalid, or contradicts the tower.
        Unsupported: a step is switched off.
    """

    version = "gemma4-1"

    def __init__(
        self,
        values: Mapping[str, Any],
        patch: int,
        merge: int,
        token_of: Callable[[str], int],
        *,
        bidirectional: bool,
    ) -> None:
        for name, default, ours in (("patch_size", 16, patch), ("pooling_kernel_size", 3, merge)):
            if values.get(name, default) != ours:
                reason = f"{name}={values.get(name, default)!r}, but the tower has {ours}"
                raise CheckpointError(f"preprocessor_config.json: {reason}")
        self._tokens = most_tokens(values)
        self._patch, self._merge, self._unit = patch, merge, patch * merge
        self._bidirectional = bidirectional
        self._levels = _levels(values)
        self.placeholder, self._begin, self._end = map(token_of, ("<|image|>", "<|image>", "<image|>"))
        self.settings = f"{self._tokens} {self._levels.filter} {self._levels.table.tobytes()!r}"

    def run_of(self, width: int, height: int) -> ImageRun:
        count = math.prod(self._grid(width, height))
        tokens = (self._begin, *(self.placeholder,) * count, self._end)
        return ImageRun(tokens, tuple(range(1, count + 1)), bidirectional=self._bidirectional)

    def frames(self, image: DecodedImage) -> tuple[Frame, ...]:
        height, width = image.pixels.shape[:2]
        rows, columns = self._grid(width, height)
        pixels = resized(image.pixels, rows * self._unit, columns * self._unit, self._levels.filter)
        patches, by_axis = block_patches(self._levels.of(pixels), self._patch, self._merge)
        by_pixel = patches.reshape(len(patches), 3, -1).swapaxes(1, 2).reshape(len(patches), -1)
        places = np.zeros((len(by_axis), 3), np.int32)
        places[:, 1:] = by_axis
        return (Frame(np.ascontiguousarray(by_pixel), places[:, 0].copy(), places),)

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the most rows and columns of tokens within the number of tokens, at the image's shape."""
        pixels = self._tokens * self._unit**2
        factor = math.sqrt(pixels / (height * width))
        rows, columns = (math.floor(factor * size / self._unit) for size in (height, width))
        if rows == columns == 0:
            raise RequestError(f"{width} x {height} pixels: a strip takes more than {self._tokens} tokens")
        if rows == 0:
            return 1, min(width // height, self._tokens)
        if columns == 0:
            return min(height // width, self._tokens), 1
        return rows, columns


def most_tokens(values: Mapping[str, Any]) -> int:
    """Return the most tokens of an image. Raises CheckpointError."""
    found = values.get("max_soft_tokens", 280)
    if type(found) is not int or found not in _BUDGETS:
        known = ", ".join(map(str, _BUDGETS))
        raise CheckpointError(f"preprocessor_config.json: max_soft_tokens must be one of {known}, got {found!r}")
    return found


def _levels(values: Mapping[str, Any]) -> Levels:
    """Return the levels, which the processor normalises only if it says so."""
    plain = {} if values.get("do_normalize", False) else {"image_mean": _ZEROS, "image_std": _ONES}
    given = {name: list(each) if isinstance(each, tuple) else each for name, each in {**values, **plain}.items()}
    levels = levels_of({**given, "do_normalize": True}, _BICUBIC, _ZEROS, _ONES)
    return replace(levels, table=np.float32(2) * (levels.table - np.float32(0.5)))
