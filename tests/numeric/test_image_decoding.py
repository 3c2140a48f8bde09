"""Files of images become the pixels of `transformers`' Pillow processors, and damaged or hostile ones a typed error."""

from __future__ import annotations

import resource
import struct
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

from ferrum.core.errors import RequestError
from ferrum.images.decoding import DEFAULT_LIMITS, ImageLimits, decode_image, decode_picture
from ferrum.images.image_files import MAX_PARTS, MAX_SCANS

ORIENTATION = 0x0112
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def pictures(width: int, height: int) -> Iterator[Image.Image]:
    """Noise in each mode that files have."""
    draws = np.random.default_rng(width)
    clear = Image.fromarray(draws.integers(0, 256, (height, width, 4), np.uint8))
    plain = clear.convert("RGB")
    yield from (clear, plain, *map(plain.convert, ("L", "1", "CMYK")), clear.convert("LA"), plain.quantize(17))
    yield Image.fromarray(draws.integers(0, 65536, (height, width), dtype=np.uint16))


def encoded(picture: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def files() -> Iterator[bytes]:
    """Files of odd sizes in each format that can hold the mode: with transparency, and in each orientation."""
    count = 0
    for width, height in ((1, 1), (3, 5), (7, 4), (31, 17), (61, 40)):
        for picture in pictures(width, height):
            for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
                tags = Image.Exif()
                tags[ORIENTATION] = 1 + count % 8
                colour = (1, 2, 3) if picture.mode == "RGB" else 3
                for options in ({}, {"exif": tags.tobytes()}, {"transparency": colour}):
                    try:
                        yield encoded(picture, format, **options)
                    except (OSError, TypeError, ValueError):  # the format has no such mode
                        continue
                    count += 1


def test_pixels_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.images.decoding._STRIP", 97)
    count = 0
    for data in files():
        opened = Image.open(BytesIO(data))
        expected = convert_to_rgb(ImageOps.exif_transpose(opened), return_numpy=True)
        np.testing.assert_array_equal(decode_image(data).pixels, expected)
        np.testing.assert_array_equal(decode_picture(Image.open(BytesIO(data))).pixels, expected)
        count += 1
    assert count > 200


def test_the_digest_is_of_pixels_and_sizes() -> None:
    square, wide = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (8, 2), "red")
    first = decode_image(encoded(square))
    assert len(first.digest) == 32
    assert first == decode_image(encoded(square, "BMP"))
    tags = Image.Exif()
    tags[0x010E] = "a description"
    assert first == decode_image(encoded(square, exif=tags.tobytes()))
    assert first != decode_image(encoded(wide))
    assert first != decode_image(encoded(Image.new("RGB", (4, 4), "blue")))


def test_an_animation_is_its_first_frame() -> None:
    frames = [Image.new("RGB", (6, 5), colour) for colour in ("red", "blue")]
    for format in ("GIF", "PNG", "WEBP"):
        animated = encoded(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)
        assert decode_image(animated) == decode_image(encoded(frames[0])), format


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *between: bytes) -> bytes:
    """Return a white grey PNG whose header says this size; the rows of the first one are there."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"".join((SIGNATURE, header, *between, chunk(b"IDAT", zlib.compress(b"\0" + b"\xff" * 4)), chunk(b"IEND")))


def gif(blocks: bytes) -> bytes:
    data = encoded(Image.new("L", (3, 3)), "GIF")
    first = data.index(b",")
    return data[:first] + b"!\xfe" + blocks + b"\0" + data[first:]


def jpeg(more: int) -> bytes:
    data = encoded(Image.new("L", (8, 8)), "JPEG")
    scan = data.index(b"\xff\xda")
    return data + data[scan:] * more


def bmp(compression: int) -> bytes:
    data = bytearray(encoded(Image.new("L", (8, 8)), "BMP"))
    data[30] = compression
    return bytes(data)


def sized(format: str, places: Mapping[int, bytes]) -> bytes:
    """Return an image of 8 x 8 with other bytes at some places of its header."""
    data = bytearray(encoded(Image.new("RGB" if format == "WEBP" else "L", (8, 8)), format))
    start = {"JPEG": data.find(b"\xff\xc0"), "GIF": data.find(b",")}.get(format, 0)
    for place, replaced in places.items():
        data[start + place : start + place + len(replaced)] = replaced
    return bytes(data)


def empty_gif() -> bytes:
    data = bytearray(sized("GIF", {5: bytes(4)}))
    data[6:10] = bytes(4)
    return bytes(data)


HOSTILE: Mapping[str, tuple[bytes, str]] = {
    "a JPEG without lines": (sized("JPEG", {5: bytes(2)}), "its header says 8 x 0 pixels"),
    "a BMP without width": (sized("BMP", {18: bytes(4)}), "its header says 0 x 8 pixels"),
    "a BMP of negative width": (sized("BMP", {18: b"\xff" * 4}), "its header says -1 x 8 pixels"),
    "a GIF without size": (empty_gif(), "its header says 0 x 0 pixels"),
    "a WebP without width": (sized("WEBP", {26: bytes(2)}), "its header says 0 x 8 pixels"),
    "a huge BMP": (sized("BMP", {18: b"\0\0\0\x7f"}), "2130706432 x 8 pixels are more than"),
    "another format": (b"<svg/>", "is no PNG, JPEG, WebP, GIF or BMP file"),
    "nothing": (b"", "is no PNG"),
    "a huge header": (png(100_000, 100_000), "100000 x 100000 pixels are more than 33177600"),
    "no width": (png(0, 4), "its header says 0 x 4 pixels"),
    "a file of zeros": (png(7680, 4320), "damaged or cut off"),
    "many chunks": (png(4, 1, chunk(b"tEXt") * MAX_PARTS), f"more than {MAX_PARTS} chunks"),
    "many blocks": (gif(b"\1a" * MAX_PARTS), f"more than {MAX_PARTS} blocks"),
    "many scans": (jpeg(MAX_SCANS), f"more than {MAX_SCANS} scans"),
    "a compressed BMP": (bmp(1), "compressed BMP"),
}


@pytest.mark.parametrize("data, reason", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        decode_image(data)
    assert refused.value.param == "image"


def test_a_bomb_is_inflated_no_further_than_its_header_says() -> None:
    """256 MB of zeros behind a row of four pixels, compressed a part at a time."""
    header, packer = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 1, 8, 0, 0, 0, 0)), zlib.compressobj(1)
    zeros = b"".join(packer.compress(bytes(1 << 22)) for _ in range(64)) + packer.flush()
    bomb = b"".join((SIGNATURE, header, chunk(b"IDAT", zeros), chunk(b"IEND")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decode_image(bomb).pixels.tolist() == [[[0, 0, 0]] * 4]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "in KiB"


def test_nothing_is_decoded_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.images.decoding._opened", lambda file: pytest.fail("decoded"))
    with pytest.raises(RequestError, match="4 x 1 pixels are more than 3"):
        decode_image(png(4, 1), ImageLimits(pixels=3))
    with pytest.raises(RequestError, match="are more than"):
        decode_picture(Image.new("1", (7680, 4321)), DEFAULT_LIMITS)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_cut_and_damaged_files_raise_nothing_else(format: str) -> None:
    data = encoded(next(pictures(31, 17)).convert("RGB"), format)
    for length in range(0, len(data) - 30, 29):
        with pytest.raises(RequestError):
            decode_image(data[:length])
    for place in (*range(2, 60), *range(60, min(len(data), 700), 13)):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        try:
            decode_image(bytes(damaged), ImageLimits(pixels=10_000))
        except RequestError as error:
            assert error.param == "image"


def test_metadata_never_reaches_the_decoder() -> None:
    """Pillow joins comments and profiles piece by piece, in time that grows with the square of their number."""
    from ferrum.images.image_files import image_file

    for data in (gif(b"\4hidden"[:5]), png(4, 1, chunk(b"tEXt", b"Comment\0hidd")), jpeg(0)):
        kept = image_file(data)
        assert kept is not None and b"hidd" not in kept.data
        assert decode_image(data).pixels.shape[2] == 3
