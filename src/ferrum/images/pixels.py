"""Arithmetic on pixels, bit for bit as the Pillow processors of `transformers`: resize in 8 bits, then numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported

Pixels = NDArray[np.uint8]
F32 = NDArray[np.float32]

_STEPS: Final = ("do_resize", "do_rescale", "do_normalize")


def resized(pixels: Pixels, height: int, width: int, filter: int) -> Pixels:
    """Resize [h, w, 3] with a filter of Pillow, by its number. Raises Unsupported if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise Unsupported("images", "Pillow is not installed; run `pip install ferrum-llm[images]`") from None
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling(filter)))


@dataclass(frozen=True, slots=True)
class Levels:
    """The numbers that the levels 0 to 255 of each channel become: (level x factor - mean) / deviation.

    Attributes:
        filter: Pillow's number of the filter that resizes.
        table: f32 [256, 3].
    """

    filter: int
    table: F32

    def of(self, pixels: Pixels) -> F32:
        """Return the numbers of pixels [h, w, 3]."""
        return np.stack([self.table[pixels[..., channel], channel] for channel in range(3)], axis=-1)


def levels_of(values: Mapping[str, Any], filter: int, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Levels:
    """Return the levels of a processor's configuration; the arguments are the defaults of its class.

    Raises:
        CheckpointError: a field is invalid.
        Unsupported: a step is switched off.
    """
    off = next((name for name in _STEPS if values.get(name, True) is not True), None)
    if off is not None:
        raise Unsupported(f"preprocessor_config.json: {off}={values[off]!r}", "every step must be on")
    number = values.get("resample", filter)
    if type(number) is not int or not 0 <= number <= 5:
        raise CheckpointError(f"preprocessor_config.json: resample must be a filter from 0 to 5, got {number!r}")
    factor = _numbers(values, "rescale_factor", (1 / 255,))[0]
    centres, spreads = (
        np.array(_numbers(values, name, default), np.float32)
        for name, default in (("image_mean", mean), ("image_std", deviation))
    )
    levels = (np.arange(256, dtype=np.float64) * factor).astype(np.float32)
    return Levels(number, (levels[:, None] - centres) / spreads)


def _numbers(values: Mapping[str, Any], name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return one number for each entry of the default."""
    found = values.get(name)
    if found is None:
        return default
    listed = found if isinstance(found, list) else [found] * len(default)
    if len(listed) != len(default) or not all(type(each) in (int, float) for each in listed):
        raise CheckpointError(f"preprocessor_config.json: {name} must be {len(default)} numbers, got {found!r}")
    return tuple(map(float, listed))


def edge_of(values: Mapping[str, Any], name: str, default: int) -> int:
    """Return the `longest_edge` of a size. Raises CheckpointError."""
    found = values.get(name, {"longest_edge": default})
    edge = found.get("longest_edge") if isinstance(found, Mapping) else None
    if type(edge) is not int or not 1 <= edge <= 1 << 14:
        raise CheckpointError(f"preprocessor_config.json: {name} must have a longest_edge up to 16384, got {found!r}")
    return edge


def block_patches(numbers: F32, patch: int, merge: int) -> tuple[F32, NDArray[np.int32]]:
    """Cut an image into patches, whose blocks of merge x merge are adjacent.

    Args:
        numbers: [h, w, 3]. Its patches form whole blocks.
        patch, merge: edge of a patch in pixels, of a block in patches.

    Returns: patches [n, 3 x patch x patch], channel by channel; and the row and column of each patch [n, 2].
    """
    rows, columns = (size // patch // merge for size in numbers.shape[:2])
    blocks = numbers.reshape(rows, merge, patch, columns, merge, patch, 3)
    patches = blocks.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3 * patch * patch)
    grid = np.moveaxis(np.indices((rows * merge, columns * merge), np.int32), 0, -1)
    places = grid.reshape(rows, merge, columns, merge, 2).swapaxes(1, 2).reshape(-1, 2)
    return np.ascontiguousarray(patches), places
