"""Damaged and malicious weight files give an error that names the file, never a crash or unbounded memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.sources.tensor_file import MAX_HEADER_BYTES, TensorFile

TENSORS = {
    "model.embed": np.arange(12, dtype=np.float32).reshape(4, 3),
    "model.norm": np.ones(3, np.float16),
    "model.ids": np.arange(5),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("valid") / "model.safetensors"
    save_file(TENSORS, path, {"format": "pt"})
    return path.read_bytes()


def file_of(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: object, begin: object, end: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def touch(path: Path) -> None:
    """Open a file and read every byte of every tensor."""
    file = TensorFile(path)
    for name, info in file.tensors.items():
        try:
            assert file.read(name).astype(np.float32).size == np.prod(info.shape, dtype=np.int64)
        except Unsupported:
            assert info.dtype not in ("F32", "F16", "BF16")


LIES = {
    "empty file": b"",
    "seven bytes": b"\0" * 7,
    "zero header": file_of(b""),
    "header beyond the file": file_of({}, length=1000),
    "header of 2^63": file_of({}, length=2**63),
    "header of 2^64 - 1": file_of({}, length=2**64 - 1),
    "not JSON": file_of(b"{not json}"),
    "not UTF-8": file_of(b'{"\xff": 1}'),
    "a list": file_of([]),
    "a number": file_of(b"5"),
    "deep": file_of(b"[" * 50_000),
    "deep value": file_of(b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "entry is null": file_of({"x": None}),
    "no shape": file_of({"x": {"dtype": "F32", "data_offsets": [0, 4]}}, b"\0" * 4),
    "unknown dtype": file_of({"x": entry([1], 0, 4, "F33")}, b"\0" * 4),
    "dtype is a number": file_of({"x": entry([1], 0, 4, 5)}, b"\0" * 4),
    "negative dimension": file_of({"x": entry([-1], 0, 4)}, b"\0" * 4),
    "two negative dimensions": file_of({"x": entry([-1, -1], 0, 4)}, b"\0" * 4),
    "fractional dimension": file_of({"x": entry([1.5], 0, 6)}, b"\0" * 6),
    "huge dimension": file_of({"x": entry([2**64], 0, 4)}, b"\0" * 4),
    "product overflows to 4 bytes": file_of({"x": entry([2**62 + 1], 0, 4)}, b"\0" * 4),
    "product overflows to 0 bytes": file_of({"x": entry([2**32, 2**32], 0, 0)}),
    "shape is more than the data": file_of({"x": entry([2], 0, 4)}, b"\0" * 4),
    "shape is less than the data": file_of({"x": entry([1], 0, 8)}, b"\0" * 8),
    "beyond the file": file_of({"x": entry([2], 0, 8)}, b"\0" * 4),
    "far beyond the file": file_of({"x": entry([2**40], 0, 2**42)}, b"\0" * 4),
    "backwards": file_of({"x": entry([1], 4, 0)}, b"\0" * 4),
    "negative offset": file_of({"x": entry([1], -4, 0)}, b"\0" * 4),
    "a gap": file_of({"x": entry([1], 0, 4), "y": entry([1], 8, 12)}, b"\0" * 12),
    "overlap": file_of({"x": entry([2], 0, 8), "y": entry([1], 4, 8)}, b"\0" * 8),
    "the same place": file_of({"x": entry([1], 0, 4), "y": entry([1], 0, 4)}, b"\0" * 4),
    "data left over": file_of({"x": entry([1], 0, 4)}, b"\0" * 8),
    "three offsets": file_of({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"\0" * 4),
    "metadata is a number": file_of({"__metadata__": 5}),
    "a tensor twice": file_of(
        b'{"x": %b, "x": %b}' % ((json.dumps(entry([1], 0, 4)).encode(),) * 2), b"\0" * 4
    ),
    "a key twice": file_of(b'{"x": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"\0" * 4),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_malicious_file_is_refused_by_name(tmp_path, lie):
    path = tmp_path / "lie.safetensors"
    path.write_bytes(LIES[lie])
    with pytest.raises(CheckpointError, match=r"lie\.safetensors"):
        touch(path)


def test_an_impossible_shape_without_data_is_harmless(tmp_path):
    """2^63 x 0 elements take no bytes, so the file is valid, but no array can have this shape."""
    path = tmp_path / "empty.safetensors"
    path.write_bytes(file_of({"x": entry([2**63, 0], 0, 0), "y": entry([0], 0, 0), "z": entry([], 0, 4)}, b"\0" * 4))
    file = TensorFile(path)
    assert file.read("y").shape == (0,)
    assert file.read("z") == 0
    with pytest.raises(CheckpointError, match=r"empty\.safetensors: tensor 'x'"):
        file.read("x")


@pytest.mark.parametrize("pad", range(8))
def test_unaligned_tensors_are_read_correctly(tmp_path, pad):
    path = tmp_path / "model.safetensors"
    values = np.array([1.5, -2.0, 3.25], np.float32)
    header = json.dumps({"x": entry([3], 0, 12)}).encode() + b" " * pad
    path.write_bytes(file_of(header, values.tobytes()))
    read = TensorFile(path).read("x")
    assert read.flags.aligned
    np.testing.assert_array_equal(read, values)


def test_every_truncation_is_refused(tmp_path, valid):
    path = tmp_path / "short.safetensors"
    for size in range(len(valid)):
        path.write_bytes(valid[:size])
        with pytest.raises(CheckpointError, match=r"short\.safetensors"):
            TensorFile(path)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Damage a file once or twice: a bit, a byte, a number of the header, a cut, an insertion or a repetition."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 2)):
        header = min(8 + int.from_bytes(data[:8], "little"), len(damaged))
        at = rng.randrange(max(1, rng.choice((header, len(damaged)))))
        match rng.choice((0, 0, 0, 1, 1, 2, 3, 4, 5)):
            case 0:
                damaged[at : at + 1] = bytes([damaged[at] ^ 1 << rng.randrange(8)]) if at < len(damaged) else b""
            case 1:
                damaged[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                digits = [i for i in range(8, header) if chr(damaged[i]).isdecimal()]
                if digits:
                    at = rng.choice(digits)
                    damaged[at : at + 1] = rng.choice(
                        (b"0", b"9", b"-1", b"1e3", b"99999999999999999999", b"4294967296")
                    )
            case 3:
                del damaged[at : at + rng.randint(1, 40)]
            case 4:
                damaged[at:at] = rng.randbytes(rng.randint(1, 9))
            case 5:
                damaged[at:at] = damaged[at : at + rng.randint(1, 60)]
        if rng.random() < 0.3:  # to get past the first check
            damaged[:8] = (len(damaged) - len(data) + int.from_bytes(data[:8], "little")).to_bytes(
                8, "little", signed=True
            )
    return bytes(damaged)


def test_2000_mutations_are_judged_as_by_the_safetensors_library(tmp_path, valid):
    """ferrum refuses repeated names in addition, and nothing else."""
    rng, opened = random.Random(7), 0
    path = tmp_path / "model.safetensors"
    for _ in range(2000):
        path.write_bytes(mutate(valid, rng))
        try:
            touch(path)
            ours = True
        except CheckpointError as error:
            ours = " times" in str(error)
        try:
            with safe_open(path, framework="numpy"):
                theirs = True
        except (SafetensorError, OSError):
            theirs = False
        assert ours == theirs
        opened += ours
    assert 100 < opened < 1900  # both outcomes occurred


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["x", "dtype", "shape", "data_offsets", "__metadata__"]), inner)))  # fmt: skip  # noqa: E501
def test_any_json_header_is_opened_or_refused(tmp_path_factory, header):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(file_of(header, b"\0" * 8))
    try:
        touch(path)
    except CheckpointError as error:
        assert "any.safetensors" in str(error)


def test_paths_that_are_not_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "nowhere")
    for name in ("pipe", "folder", "link", "absent"):
        with pytest.raises(CheckpointError, match=name):
            TensorFile(tmp_path / f"{name}.safetensors")


def test_a_huge_header_is_not_read(tmp_path):
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match=r"a header of \d+ bytes"):
        TensorFile(path)


MEMORY = """
    import sys
    from pathlib import Path
    import numpy as np
    from ferrum.sources.checkpoint import Checkpoint
    from ferrum.sources.parameters import Parameters

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    parameters = Parameters(Checkpoint(Path(sys.argv[1])), dtype=sys.argv[2])
    weight = parameters.matrix("model.big", (1 << 19, 1 << 10))
    opened = resident() - before
    weight.rows(np.array([0, 500_000], np.int32))
    print(opened, resident() - before)
"""


def resident_growth(directory: Path, dtype: str, rows: int) -> tuple[int, int]:
    program = textwrap.dedent(MEMORY).replace("1 << 19", str(rows)).replace("500_000", str(rows - 1))
    run = [sys.executable, "-c", program, str(directory), dtype]
    opened, used = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    return int(opened), int(used)


def sparse_checkpoint(directory: Path, rows: int) -> Path:
    """Write a matrix [rows, 1024] of float32 zeros as a sparse file."""
    (directory / "config.json").write_text("{}")
    with (directory / "model.safetensors").open("wb") as file:
        text = json.dumps({"model.big": entry([rows, 1024], 0, rows * 4096)}).encode()
        header = file_of(text + b" " * (-len(text) % 8))
        file.write(header)
        file.truncate(len(header) + rows * 4096)
    return directory


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_2_gigabytes_are_mapped_without_reading(tmp_path):
    opened, used = resident_growth(sparse_checkpoint(tmp_path, 1 << 19), "auto", 1 << 19)
    assert opened < 8 << 20
    assert used < 16 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_conversion_holds_the_result_and_a_few_pieces(tmp_path):
    """192 MiB of float32 become 96 MiB of bfloat16; the mapped source is freed."""
    rows = 3 << 14
    opened, _ = resident_growth(sparse_checkpoint(tmp_path, rows), "bfloat16", rows)
    assert rows * 2048 <= opened + (1 << 20)
    assert opened < rows * 2048 + (16 << 20)
