"""`decode_image`: from the file of an image, or an image of Pillow, to pixels, within limits.

Which parts of a file a decoder sees is in `image_files`, what a model makes of pixels in `image_processor`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import RequestError, Unsupported
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_files import ImageFile, image_file

if TYPE_CHECKING:
    from PIL import Image

FORMATS: Final = "PNG, JPEG, WebP, GIF or BMP"

MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")

FIELD: Final = "image"
"""The field in errors; callers name their own."""

_STRIP: Final = 1 << 20
"""Pixels that are converted at a time, so that a large image is not in memory several times."""

_ORIENTATION: Final = 0x0112
"""The EXIF tag."""

_TURNS: Final = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels.swapaxes(0, 1)[:, ::-1],
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels.swapaxes(0, 1)[::-1],
}
"""What shows an image upright, by its orientation (EXIF 2.32, tag 274)."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits on the images of a request.

    Attributes:
        images: how many.
        pixels: of one image; the default is a frame of 8K, 33 megapixels.
        total_pixels: of all.
    """

    images: int = 32
    pixels: int = 7680 * 4320
    total_pixels: int = 2 * 7680 * 4320


DEFAULT_LIMITS: Final = ImageLimits()


def decode_image(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> DecodedImage:
    """Decode a file: its first frame, upright as its EXIF data says, on white where it is transparent.

    Raises:
        RequestError: it has another format, is damaged or has too many pixels; `param` is `FIELD`.
        Unsupported: Pillow is missing.
    """
    check_pillow()
    try:
        file = image_file(data)
    except ValueError as error:
        raise _error(f"cannot be decoded: {error}") from None
    if file is None:
        raise _error(f"is no {FORMATS} file: convert it")
    _check_size(file.width, file.height, limits)
    with _opened(file) as image:
        if image.size != (file.width, file.height):
            raise _error("cannot be decoded: its header has two sizes")
        return decoded(image)


def decode_picture(image: Image.Image, limits: ImageLimits = DEFAULT_LIMITS) -> DecodedImage:
    """Convert an image of Pillow as `decode_image` does; it may be of any format. Raises RequestError."""
    _check_size(*image.size, limits)
    return decoded(image)


def decoded(image: Image.Image) -> DecodedImage:
    """Return the pixels of an image of Pillow. Raises RequestError: it is damaged."""
    try:
        image.load()
        pixels = _rgb(image)
    except Exception as error:  # noqa: BLE001 - a decoder of damaged files may fail in any way
        raise _error(f"cannot be decoded: it is damaged or cut off ({_reason(error)})") from None
    turn = _TURNS.get(_orientation(image))
    return image_of(pixels if turn is None else turn(pixels))


def image_of(pixels: NDArray[np.uint8]) -> DecodedImage:
    """Return the image of some pixels, [height, width, 3]."""
    pixels = np.ascontiguousarray(pixels)
    digest = hashlib.sha256(struct.pack("<2I", *pixels.shape[:2]))
    digest.update(pixels.data)
    return DecodedImage(pixels, digest.digest())


def check_pillow() -> None:
    """Raise Unsupported if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise Unsupported(FIELD, "reading images needs Pillow: pip install 'ferrum-llm[images]'") from None


def _check_size(width: int, height: int, limits: ImageLimits) -> None:
    if width < 1 or height < 1:
        raise _error(f"cannot be decoded: its header says {width} x {height} pixels")
    if width * height > limits.pixels:
        raise _error(f"{width} x {height} pixels are more than {limits.pixels}: send a smaller image")


def _opened(file: ImageFile) -> Image.Image:
    """Return the image of a file, not decoded yet, by the one reader of its format."""
    plugin = import_module(f"PIL.{_PLUGINS[file.format]}ImagePlugin")
    try:
        image: Image.Image = getattr(plugin, f"{_PLUGINS[file.format]}ImageFile")(BytesIO(file.data))
    except Exception as error:  # noqa: BLE001 - as in `decoded`
        raise _error(f"cannot be decoded: it is damaged or cut off ({_reason(error)})") from None
    return image


_PLUGINS: Final = {"PNG": "Png", "JPEG": "Jpeg", "WEBP": "WebP", "GIF": "Gif", "BMP": "Bmp"}


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return the pixels of a loaded image, [height, width, 3], with transparent ones on white.

    Images without transparency are not composed, and 16-bit ones are clipped: `convert_to_rgb` of transformers 5.24
    does the same.
    """
    from PIL import Image

    clear = "A" in image.getbands() or image.info.get("transparency") is not None
    made = np.empty((image.height, image.width, 3), np.uint8)
    for top, bottom in _strips(image.width, image.height):
        strip = image.crop((0, top, image.width, bottom))
        if clear:
            strip = strip.convert("RGBA")
            strip = Image.alpha_composite(Image.new("RGBA", strip.size, (255, 255, 255, 255)), strip)
        made[top:bottom] = np.asarray(strip.convert("RGB"))
    return made


def _strips(width: int, height: int) -> Iterator[tuple[int, int]]:
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        yield top, min(height, top + rows)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - damaged metadata damages no pixel
        return 1


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _error(reason: str) -> RequestError:
    return RequestError(reason, param=FIELD)
