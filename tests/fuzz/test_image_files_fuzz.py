"""Damaged files of images: right pixels within limits or a typed error, whatever bytes are changed, cut or repeated."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ferrum.core.errors import RequestError
from ferrum.images.decoding import ImageLimits, decode_image
from hypothesis_settings import examples

LIMITS = ImageLimits(pixels=20_000)
FORMS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "PNG P": {"mode": "P"},
    "PNG I;16": {"mode": "I;16"},
    "PNG RGBA": {"mode": "RGBA", "animated": True},
    "JPEG": {"options": {"progressive": True, "exif": b"Exif\0\0II*\0\b\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"}},
    "JPEG CMYK": {"mode": "CMYK"},
    "WEBP": {"options": {"lossless": False}},
    "WEBP RGBA": {"mode": "RGBA", "animated": True, "options": {"lossless": True}},
    "GIF P": {"mode": "P", "animated": True},
    "BMP": {},
    "BMP 1": {"mode": "1"},
}


@cache
def sound(form: str) -> bytes:
    """Return a small file of a form."""
    about, draws = FORMS[form], np.random.default_rng(len(form))
    noise = Image.fromarray(draws.integers(0, 256, (23, 37, 3), np.uint8))
    mode = about.get("mode", "RGB")
    wide = draws.integers(0, 65536, (23, 37), np.uint16)
    picture = Image.fromarray(wide) if mode == "I;16" else noise.convert(mode)
    more = {"save_all": True, "append_images": [picture.rotate(90)]} if about.get("animated") else {}
    file = BytesIO()
    picture.save(file, form.partition(" ")[0], **more, **about.get("options", {}))
    return file.getvalue()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a sound file after a few changes, most of them near its beginning, where headers are."""
    data = bytearray(sound(draw(st.sampled_from(sorted(FORMS)))))
    for _ in range(draw(st.integers(1, 4))):
        end = draw(st.sampled_from((40, 200, len(data))))
        at = draw(st.integers(0, max(0, min(end, len(data)) - 1)))
        match draw(st.sampled_from(("byte", "long", "cut", "repeat", "drop"))):
            case "byte":
                data[at : at + 1] = bytes([draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))])
            case "long":
                data[at : at + 4] = draw(st.sampled_from((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")))
            case "cut":
                del data[at:]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 300))] * draw(st.integers(1, 50))
            case "drop":
                del data[at : at + draw(st.integers(1, 30))]
    return bytes(data)


def test_sound_files_decode() -> None:
    assert {decode_image(sound(form), LIMITS).pixels.size for form in FORMS} == {23 * 37 * 3}


@examples(400)
@given(damaged())
def test_damaged_files_give_pixels_within_the_limits_or_a_typed_error(data: bytes) -> None:
    try:
        image = decode_image(data, LIMITS)
    except RequestError as error:
        assert error.param == "image" and len(str(error)) < 300
        return
    height, width, channels = image.pixels.shape
    assert channels == 3 and 1 <= height * width <= LIMITS.pixels
    assert image == decode_image(data, LIMITS), "the same file has the same pixels"
