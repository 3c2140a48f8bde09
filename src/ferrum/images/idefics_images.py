"""Images of Idefics 3 and SmolVLM: tiles of one size, and the whole image as the last one.

An image is enlarged or reduced to the longest edge, then to whole tiles (Laurençon et al. 2024, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_processor import Frame, ImageRun
from ferrum.images.pixels import Pixels, block_patches, edge_of, levels_of, resized

_LARGEST: Final = 4096
"""Limit of an edge before tiles are cut."""

_LANCZOS: Final = 1
_HALF: Final = (0.5, 0.5, 0.5)


class IdeficsImages:
    """The `ImageFamily` of Idefics 3 and SmolVLM.

    Args:
        values: of `preprocessor_config.json`.
        patch, side, merge: edge of a patch in pixels; places of learned positions per side; patches per side of a row.
        token_of: returns the id of a special token.
        encode: returns the ids of a text.

    Raises:
        CheckpointError: a field is invalid, or contradicts the tower.
        Unsupported: a step is switched off.
    """

    version = "idefics3-1"

    def __init__(
        self,
        values: Mapping[str, Any],
        patch: int,
        side: int,
        merge: int,
        token_of: Callable[[str], int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.placeholder = token_of("<image>")
        self._edge, self._tile = edge_of(values, "size", 4 * 364), edge_of(values, "max_image_size", 364)
        self._splits = values.get("do_image_splitting", True) is not False
        self._levels = levels_of(values, _LANCZOS, _HALF, _HALF)
        self._patch, self._side, self._merge, self._encode = patch, side, merge, encode
        if self._tile // patch % merge or self._tile // patch > side:
            reason = f"tiles of {self._tile} pixels do not fit patches of {patch}, {side} positions and rows of {merge}"
            raise CheckpointError(f"preprocessor_config.json: max_image_size: {reason}")
        self._rows = (self._tile // patch // merge) ** 2
        self.settings = (
            f"{self._edge} {self._tile} {self._splits} {self._levels.filter} {self._levels.table.tobytes()!r}"
        )
        self._runs: dict[tuple[int, int], ImageRun] = {}

    def run_of(self, width: int, height: int) -> ImageRun:
        _, whole = self._sizes(width, height)
        grid = self._grid(*whole)
        if grid not in self._runs:
            tokens = tuple(self._encode(self._text(*grid)))
            rows = tuple(index for index, token in enumerate(tokens) if token == self.placeholder)
            self._runs[grid] = ImageRun(tokens, rows)
        return self._runs[grid]

    def frames(self, image: DecodedImage) -> tuple[Frame, ...]:
        height, width = image.pixels.shape[:2]
        first, (height, width) = self._sizes(width, height)
        pixels = self._resized(image.pixels, *first)
        if not self._splits:
            return (self._frame(self._resized(pixels, self._tile, self._tile)),)
        pixels = self._resized(pixels, height, width)
        down, across = self._grid(height, width)
        edges = [(row * self._tile, column * self._tile) for row in range(down) for column in range(across)]
        tiles = [pixels[top : top + self._tile, left : left + self._tile] for top, left in edges]
        whole = self._resized(pixels, self._tile, self._tile) if tiles else pixels
        return tuple(map(self._frame, (*tiles, whole)))

    def _frame(self, pixels: Pixels) -> Frame:
        usable = len(pixels) // self._patch * self._patch
        patches, places = block_patches(self._levels.of(pixels[:usable, :usable]), self._patch, self._merge)
        by_axis = places_of(usable // self._patch, self._side)[places]
        return Frame(patches, (by_axis[:, 0] * self._side + by_axis[:, 1]).astype(np.int32))

    def _resized(self, pixels: Pixels, height: int, width: int) -> Pixels:
        return resized(pixels, height, width, self._levels.filter)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of tiles of an image of whole tiles; zeros if it is one tile."""
        if not self._splits or max(height, width) <= self._tile:
            return 0, 0
        return height // self._tile, width // self._tile

    def _sizes(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return height and width after the first resize, and those of whole tiles after the second."""
        first = height, width = _below(*_to_edge(height, width, self._edge), _LARGEST)
        tile, ratio = self._tile, width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            return first, (math.ceil(int(width / ratio) / tile) * tile, width)
        height = math.ceil(height / tile) * tile
        return first, (height, math.ceil(int(height * ratio) / tile) * tile)

    def _text(self, down: int, across: int) -> str:
        image, around = "<image>" * self._rows, "<fake_token_around_image>"
        whole = f"{around}<global-img>{image}{around}"
        if not down:
            return whole
        rows = (
            "".join(f"{around}<row_{row + 1}_col_{column + 1}>{image}" for column in range(across))
            for row in range(down)
        )
        return "\n".join(rows) + "\n\n" + whole


def _to_edge(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return the size with the longer edge of this length, and the other one even."""
    ratio = width / height
    if width >= height:
        width, height = edge, int(edge / ratio)
        height += height % 2
    else:
        height, width = edge, int(edge * ratio)
        width += width % 2
    return max(height, 1), max(width, 1)


def _below(height: int, width: int, limit: int) -> tuple[int, int]:
    """Return the size reduced to an edge of at most `limit`."""
    ratio = width / height
    if width >= height and width > limit:
        height, width = int(limit / ratio), limit
    elif height > width and height > limit:
        height, width = limit, int(limit * ratio)
    return max(height, 1), max(width, 1)


def places_of(count: int, side: int) -> NDArray[np.int64]:
    """Return the learned position of each of `count` patches along an axis of `side` positions.

    `transformers` compares fractions in f32, so some sides that no published model has (19, 25, 29) repeat a position
    there. Here fractions are exact.
    """
    return np.arange(count) * side // count
