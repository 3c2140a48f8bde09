"""Images of a conversation: found in the parts of its messages, decoded, and replaced by what templates read.

A part has an image in OpenAI's form, `{"type": "image_url", "image_url": {"url": "data:..."}}`, or as
`{"type": "image", "image": ...}`: the bytes of a file, its path, an image of Pillow, or a `SentImage`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.errors import RequestError
from ferrum.text.template_messages import IMAGE, Message, is_image

if TYPE_CHECKING:
    from ferrum.images.decoded_image import DecodedImage
    from ferrum.images.decoding import ImageLimits

HOW_TO_SEND: Final = "nothing is fetched; send the image itself, as in data:image/png;base64,..."

_DATA_URL: Final = re.compile(r"data:(?:image/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image as a client of the server sent it.

    Attributes:
        data: the file in base64.
        field: the client's name of it.
    """

    data: str
    field: str


def sent_by_url(url: Any, field: str) -> SentImage:
    """Return the image of a data URL. Raises RequestError for another URL: nothing is fetched."""
    if not isinstance(url, str):
        raise RequestError("must be a data URL", param=field)
    head = _DATA_URL.match(url)
    if head is None:
        raise RequestError(f"{url[:_SHOWN]!r} is no data URL of an image in base64: {HOW_TO_SEND}", param=field)
    return SentImage(url[head.end() :], field)


def has_images(messages: Sequence[Message]) -> bool:
    """Return whether a part of the messages has an image."""
    return any(_holds_image(part) for message in messages for part in _parts(message))


def with_images_apart(
    messages: Sequence[Message], limits: ImageLimits | None = None
) -> tuple[list[Message], tuple[DecodedImage, ...]]:
    """Return messages with `IMAGE` in place of each image, and the images, decoded, in their order.

    Raises:
        RequestError: an image cannot be decoded, or there are too many; `param` is its field.
        Unsupported: Pillow is missing.
    """
    from ferrum.images.decoding import DEFAULT_LIMITS

    limits = limits or DEFAULT_LIMITS
    images: list[DecodedImage] = []
    apart: list[Message] = []
    left = limits.total_pixels
    for place, message in enumerate(messages):
        if not any(map(_holds_image, _parts(message))):
            apart.append(message)
            continue
        content = list(message["content"])
        for at, part in enumerate(content):
            if not _holds_image(part):
                continue
            field = _field_of(part, f"messages[{place}].content[{at}]")
            given = _given(part, field)
            if len(images) == limits.images:
                raise RequestError(f"is one of more than {limits.images} images, the limit of a request", param=field)
            try:
                image = _decoded(given, limits)
            except RequestError as error:
                raise error.about(field) from None
            left -= image.pixels.shape[0] * image.pixels.shape[1]
            if left < 0:
                reason = f"the images have more than {limits.total_pixels} pixels together: send smaller ones"
                raise RequestError(reason, param=field)
            images.append(image)
            content[at] = IMAGE
        apart.append({**message, "content": content})
    return apart, tuple(images)


def first_field(messages: Sequence[Message]) -> str:
    """Return the field of the first image of messages that have one."""
    return next(
        _field_of(part, f"messages[{place}].content[{at}]")
        for place, message in enumerate(messages)
        for at, part in enumerate(_parts(message))
        if _holds_image(part)
    )


def _parts(message: Any) -> Sequence[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list | tuple) else ()


def _holds_image(part: Any) -> bool:
    if not isinstance(part, Mapping) or is_image(part):
        return False
    return part.get("type") in ("image", "image_url")


def _field_of(part: Mapping[str, Any], where: str) -> str:
    """Return the field of the image of a part."""
    if part["type"] == "image":
        given = part.get("image")
        return given.field if isinstance(given, SentImage) else f"{where}.image"
    return f"{where}.image_url.url" if isinstance(part.get("image_url"), Mapping) else f"{where}.image_url"


def _given(part: Mapping[str, Any], field: str) -> Any:
    """Return what holds the image of a part. Raises RequestError for a URL that is not its data."""
    if part["type"] == "image":
        return part.get("image")
    link = part.get("image_url")
    return sent_by_url(link.get("url") if isinstance(link, Mapping) else link, field)


def _decoded(given: Any, limits: ImageLimits) -> DecodedImage:
    from ferrum.images.decoding import FIELD, FORMATS, check_pillow, decode_image, decode_picture

    check_pillow()
    if isinstance(given, SentImage):
        return decode_image(_from_base64(given.data), limits)
    if isinstance(given, bytes | bytearray | memoryview):
        return decode_image(bytes(given), limits)
    if isinstance(given, str | PathLike):
        try:
            return decode_image(Path(given).expanduser().read_bytes(), limits)
        except (OSError, ValueError, RuntimeError) as error:
            raise RequestError(f"cannot read the file: {error}", param=FIELD) from None
    from PIL import Image

    if isinstance(given, Image.Image):
        return decode_picture(given, limits)
    kinds = f"the bytes or the path of a {FORMATS} file, or an image of Pillow"
    raise RequestError(f"must be {kinds}, not {type(given).__name__}", param=FIELD)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"is not base64: {error}", param="image") from None
