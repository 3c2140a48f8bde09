"""Images of LFM2-VL (Liquid AI 2025): one frame within a number of tokens, or tiles of one size and a thumbnail."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ferrum.core.errors import CheckpointError, RequestError
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_processor import Frame, ImageRun
from ferrum.images.pixels import Pixels, block_patches, levels_of, resized

_BILINEAR: Final = 2
_HALF: Final = (0.5, 0.5, 0.5)
_COUNTS: Final = {
    "downsample_factor": 2,
    "encoder_patch_size": 16,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "min_tiles": 2,
    "max_tiles": 10,
    "tile_size": 512,
}
"""Fields of `preprocessor_config.json`, and the defaults of the class of `transformers`."""

Size = tuple[int, int]


class Lfm2Images:
    """The `ImageFamily` of LFM2-VL.

    `transformers` 5.24 has its processor on torchvision alone, some of whose pixels are two levels from Pillow's.

    Args:
        values: of `preprocessor_config.json`. `do_resize` is not read: published files switch it off, and it has no
            effect there.
        patch, merge: edge of a patch in pixels; patches per side of a row.
        token_of: returns the id of a special token.

    Raises:
        CheckpointError: a field is invalid, or contradicts the tower.
        Unsupported: a step is switched off.
    """

    version = "lfm2-vl-1"

    def __init__(self, values: Mapping[str, Any], patch: int, merge: int, token_of: Callable[[str], int]) -> None:
        counts = _counts(values)
        for name, ours in (("encoder_patch_size", patch), ("downsample_factor", merge)):
            if counts[name] != ours:
                raise _invalid(f"{name}={counts[name]}, but the tower has {ours}")
        self._patch, self._merge, self._unit = patch, merge, patch * merge
        self._least, self._most = counts["min_image_tokens"], counts["max_image_tokens"]
        self._tile, self._tiles = counts["tile_size"], (counts["min_tiles"], counts["max_tiles"])
        self._tolerance = _tolerance(values)
        self._thumbnail = values.get("use_thumbnail", True) is not False
        if values.get("do_image_splitting", True) is False:
            self._tiles = 1, 1
        if self._least > self._most or self._tiles[0] > self._tiles[1] or self._tile % self._unit:
            reason = f"tile_size must be a multiple of {self._unit}, got {self._tile}"
            raise _invalid(f"{reason}; min_image_tokens and min_tiles must not be above the max_ ones")
        self._limit = most_patches(values) // merge**2
        self._levels = levels_of({**values, "do_resize": True}, _BILINEAR, _HALF, _HALF)
        self.placeholder = token_of("<image>")
        self._start, self._end = map(token_of, ("<|image_start|>", "<|image_end|>"))
        self._token_of = token_of
        self.settings = (
            f"{self._least} {self._most} {self._tile} {self._tiles} {self._tolerance} {self._thumbnail} "
            f"{self._levels.filter} {self._levels.table.tobytes()!r}"
        )

    def run_of(self, width: int, height: int) -> ImageRun:
        (down, across), whole = self._grid(width, height), self._whole(width, height)
        tokens = [self._start]
        for row in range(down):
            for column in range(across):
                tokens.append(self._token_of(f"<|img_row_{row + 1}_col_{column + 1}|>"))
                tokens += [self.placeholder] * (self._tile // self._unit) ** 2
        if self._has_thumbnail(down, across):
            tokens.append(self._token_of("<|img_thumbnail|>"))
        if not down or self._has_thumbnail(down, across):
            tokens += [self.placeholder] * math.prod(whole)
        tokens.append(self._end)
        return ImageRun(tuple(tokens), tuple(index for index, token in enumerate(tokens) if token == self.placeholder))

    def frames(self, image: DecodedImage) -> tuple[Frame, ...]:
        height, width = image.pixels.shape[:2]
        (down, across), (rows, columns) = self._grid(width, height), self._whole(width, height)
        tile, found = self._tile, list[Pixels]()
        if down:
            pixels = resized(image.pixels, down * tile, across * tile, self._levels.filter)
            edges = [(row * tile, column * tile) for row in range(down) for column in range(across)]
            found += [pixels[top : top + tile, left : left + tile] for top, left in edges]
        if not down or self._has_thumbnail(down, across):
            found.append(resized(image.pixels, rows * self._unit, columns * self._unit, self._levels.filter))
        return tuple(map(self._frame, found))

    def _frame(self, pixels: Pixels) -> Frame:
        patches, by_axis = block_patches(self._levels.of(pixels), self._patch, self._merge)
        by_pixel = patches.reshape(len(patches), 3, -1).swapaxes(1, 2).reshape(len(patches), -1)
        places = np.zeros((len(by_axis), 3), np.int32)
        places[:, 1:] = by_axis  # joined with it, a single row or column would have another memory layout
        return Frame(by_pixel, places[:, 0].copy(), places)

    def _has_thumbnail(self, down: int, across: int) -> bool:
        return self._thumbnail and down * across > 1

    def _grid(self, width: int, height: int) -> Size:
        """Return the rows and columns of tiles; zeros of an image that is one frame."""
        edges = (max(self._patch, round(size / self._unit) * self._unit) for size in (height, width))
        if self._tiles[1] == 1 or math.prod(edges) <= self._most * self._unit**2 * self._tolerance:
            return 0, 0
        return closest_grid(width, height, self._tiles, self._tile)

    def _whole(self, width: int, height: int) -> Size:
        """Return the rows and columns of tokens of an image in one frame, or of its thumbnail. Raises RequestError."""
        sizes, pixels = (height, width), width * height
        rows, columns = (max(1, round(size / self._unit)) for size in sizes)
        if rows * columns > self._most:
            shrink = math.sqrt(pixels / (self._most * self._unit**2))
            rows, columns = (max(1, math.floor(size / shrink / self._unit)) for size in sizes)
        elif rows * columns < self._least:
            grow = math.sqrt(self._least * self._unit**2 / pixels)
            rows, columns = (math.ceil(size * grow / self._unit) for size in sizes)
        if rows * columns > self._limit:
            reason = (
                f"{width} x {height} pixels: a strip takes more than {self._limit} tokens: cut the image into parts"
            )
            raise RequestError(reason, param="images")
        return rows, columns


def closest_grid(width: int, height: int, tiles: tuple[int, int], tile: int) -> Size:
    """Return the rows and columns of tiles whose shape is closest to that of an image.

    Of equally close ones, a larger one is taken while the image has more than half of its pixels.

    Args:
        width, height: of the image.
        tiles: the fewest and the most tiles.
        tile: edge of a tile in pixels.
    """
    least, most = tiles
    grids = [(down, across) for down in range(1, most + 1) for across in range(1, most // down + 1)]
    grids = sorted((grid for grid in grids if math.prod(grid) >= least), key=math.prod)
    best, smallest = (1, 1), math.inf
    for down, across in grids:
        difference = abs(width / height - across / down)
        larger = difference == smallest and width * height > 0.5 * tile * tile * down * across
        if difference < smallest or larger:
            best, smallest = (down, across), difference
    return best


def most_patches(values: Mapping[str, Any]) -> int:
    """Return the patches of the largest frame of a processor's configuration. Raises CheckpointError.

    An enlarged image may have more than the most tokens, since both of its sides are rounded up; long strips, which
    would have more than twice the fewest, are refused.
    """
    counts = _counts(values)
    tokens = max(counts["max_image_tokens"], 2 * counts["min_image_tokens"])
    tile = counts["tile_size"] // counts["encoder_patch_size"]
    return max(tokens * counts["downsample_factor"] ** 2, tile**2)


def _counts(values: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for name, default in _COUNTS.items():
        number = values.get(name, default)
        if type(number) is not int or not 1 <= number <= 1 << 14:
            raise _invalid(f"{name} must be an integer from 1 to 16384, got {number!r}")
        found[name] = number
    return found


def _tolerance(values: Mapping[str, Any]) -> float:
    number = values.get("max_pixels_tolerance", 2.0)
    if type(number) not in (int, float) or not 0 < number < math.inf:
        raise _invalid(f"max_pixels_tolerance must be a number above 0, got {number!r}")
    return float(number)


def _invalid(reason: str) -> CheckpointError:
    return CheckpointError(f"preprocessor_config.json: {reason}")
