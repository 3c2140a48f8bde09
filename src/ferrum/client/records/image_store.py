"""Images of recorded requests: files next to the records, named by the digest of their pixels.

They are PNG files of the pixels alone, so that a record holds no metadata of what a client sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.errors import RecordDamaged, RecordMismatch, RequestError

if TYPE_CHECKING:
    from ferrum.images.decoded_image import DecodedImage

SUFFIX: Final = ".png"

_LEVEL: Final = 1
"""Of compression: pixels are written between steps of other requests."""


def image_files(images: tuple[Any, ...]) -> dict[str, Callable[[], bytes]]:
    """Return what makes the file of each `DecodedImage`, by its name."""
    return {f"{each.digest.hex()}{SUFFIX}": partial(_png, each) for each in images}


def _png(image: DecodedImage) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(image.pixels).save(file, "PNG", compress_level=_LEVEL)
    return file.getvalue()


def recorded_images(directory: Path, digests: tuple[str, ...]) -> tuple[DecodedImage, ...]:
    """Return the images of a record.

    Args:
        directory: of the record.
        digests: of the images, in hexadecimal.

    Raises:
        RecordMismatch: an image is not there: it was deleted to make room, or the record was copied without it.
        RecordDamaged: a file has other pixels.
        Unsupported: Pillow is missing.
    """
    return tuple(_image(directory / f"{digest}{SUFFIX}", digest) for digest in digests)


def _image(path: Path, digest: str) -> DecodedImage:
    from ferrum.images.decoding import decode_image

    try:
        image = decode_image(path.read_bytes())
    except OSError:
        raise RecordMismatch(f"the record has an image that is not there any more: {path}") from None
    except RequestError as error:
        raise RecordDamaged(f"{path} is damaged: {error.message}") from None
    if image.digest.hex() != digest:
        raise RecordDamaged(f"{path} has other pixels than the recorded image")
    return image
