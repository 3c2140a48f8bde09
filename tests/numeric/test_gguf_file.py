"""Damaged GGUF headers are refused with what is wrong, in bounded memory and time."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from ferrum.core.errors import CheckpointError, FerrumError, Unsupported
from ferrum.sources.gguf_file import GgufFile
from gguf_bytes import entry, record, text


def file_of(
    entries: tuple[bytes, ...] = (),
    records: tuple[bytes, ...] = (record(),),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 64,
) -> bytes:
    """Return a file with one tensor of four float32 numbers, unless arguments say otherwise."""
    tensors, values = counts or (len(records), len(entries))
    head = magic + struct.pack("<IQQ", version, tensors, values) + b"".join((*entries, *records))
    return head + bytes(-len(head) % 32) + bytes(data)


def opened(path: Path, content: bytes) -> GgufFile:
    path.write_bytes(content)
    return GgufFile(path)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_type_is_read(tmp_path: Path, version: int) -> None:
    numbers = [(0, "<B", 7), (1, "<b", -7), (2, "<H", 700), (3, "<h", -700), (4, "<I", 1 << 31), (5, "<i", -(1 << 31))]
    numbers += [(10, "<Q", 1 << 63), (11, "<q", -(1 << 63)), (7, "<?", True)]
    entries = [entry(f"n{code}", code, struct.pack(format, value)) for code, format, value in numbers]
    entries += [entry("f", 6, struct.pack("<f", 0.5)), entry("d", 12, struct.pack("<d", 0.1)), entry("s", 8, text("é"))]
    entries.append(entry("a", 9, struct.pack("<IQ3h", 3, 3, 1, -2, 3)))
    entries.append(entry("words", 9, struct.pack("<IQ", 8, 2) + text("x") + text("")))
    file = opened(tmp_path / "m.gguf", file_of(tuple(entries), version=version))
    expected = {f"n{code}": value for code, _, value in numbers}
    assert file.metadata == {**expected, "f": 0.5, "d": 0.1, "s": "é", "a": [1, -2, 3], "words": ["x", ""]}
    assert file.tensors["t"].shape == (4,) and file.blocks("t").shape == (1, 4, 4)


HUGE = 1 << 62
DAMAGED = {
    "another magic": file_of(magic=b"GGML"),
    "version 1": file_of(version=1),
    "version 4": file_of(version=4),
    "big-endian": file_of(version=3 << 24),
    "too many tensors": file_of(counts=(HUGE, 0)),
    "too much metadata": file_of(counts=(1, HUGE)),
    "a key beyond the end": file_of((struct.pack("<Q", HUGE),), counts=(1, 1)),
    "a key that is not UTF-8": file_of((struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 1),)),
    "a repeated key": file_of((entry("k", 0, b"1"), entry("k", 0, b"2"))),
    "an unknown value type": file_of((entry("k", 13, b"1"),)),
    "an array of arrays": file_of((entry("k", 9, struct.pack("<IQ", 9, 1)),)),
    "an array beyond the end": file_of((entry("k", 9, struct.pack("<IQ", 10, HUGE)),)),
    "strings beyond the end": file_of((entry("k", 9, struct.pack("<IQ", 8, HUGE)),)),
    "an alignment of 0": file_of((entry("general.alignment", 4, struct.pack("<I", 0)),)),
    "an alignment of 24": file_of((entry("general.alignment", 4, struct.pack("<I", 24)),)),
    "an alignment in words": file_of((entry("general.alignment", 8, text("32")),)),
    "a repeated tensor": file_of(records=(record(), record())),
    "no dimension": file_of(records=(record(shape=()),)),
    "five dimensions": file_of(records=(record(shape=(1, 1, 1, 1, 4)),)),
    "an empty dimension": file_of(records=(record(shape=(0, 4)),)),
    "dimensions whose product wraps": file_of(records=(record(shape=(1 << 33, 1 << 31)),)),
    "a row of half a block": file_of(records=(record(shape=(48,), kind=8),)),
    "an unknown tensor type": file_of(records=(record(kind=99),)),
    "a type that is not read": file_of(records=(record(shape=(256,), kind=16),)),
    "an offset off the alignment": file_of(records=(record(offset=4),)),
    "an offset beyond the end": file_of(records=(record(offset=1 << 40),)),
    "an offset that wraps": file_of(records=(record(offset=(1 << 64) - 32),)),
    "truncated data": file_of(data=8),
    "truncated header": file_of()[:30],
    "nothing after the magic": b"GGUF",
    "an empty file": b"",
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_a_fault_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FerrumError) as caught:
            opened(tmp_path / "m.gguf", DAMAGED[fault])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(caught.value, CheckpointError | Unsupported) and "m.gguf" in str(caught.value)
    assert peak < 1 << 20


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(CheckpointError):
            GgufFile(path)


LONG = 1 << 33
HOLES = {
    "a key": file_of((struct.pack("<Q", LONG - 200),), counts=(1, 1)),
    "a tensor's name": file_of(records=(struct.pack("<Q", LONG - 200),)),
    "a text": file_of((entry("k", 8, struct.pack("<Q", LONG - 200)),)),
    "texts": file_of((entry("k", 9, struct.pack("<IQ", 8, LONG // 16)),)),
    "numbers": file_of((entry("k", 9, struct.pack("<IQ", 0, LONG // 2)),)),
}


@pytest.mark.parametrize("part", HOLES)
def test_a_length_that_reaches_into_the_weights_reads_none_of_them(tmp_path: Path, part: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HOLES[part])
    with path.open("r+b") as file:
        file.truncate(LONG)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="is damaged at byte"):
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
