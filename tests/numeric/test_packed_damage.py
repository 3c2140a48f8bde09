"""Damaged packed directories give an error or the right weights, never a crash or a wrong number."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ferrum.core.errors import FerrumError
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.reference import ReferenceKernels, page_sums
from ferrum.models.decoder import build_decoder
from ferrum.models.families import decoder_spec
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.packed import PackedParameters, checksum
from native_twin import TIERS
from packed_kit import packed_of

Mutation = Callable[[bytearray, np.random.Generator], None]


def flip(data: bytearray, rng: np.random.Generator) -> None:
    for place in rng.integers(0, len(data), rng.integers(1, 4)):
        data[place] ^= int(rng.integers(1, 256))


def cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[int(rng.integers(0, len(data))) :]


def remove(data: bytearray, rng: np.random.Generator) -> None:
    begin = int(rng.integers(0, len(data)))
    del data[begin : begin + int(rng.integers(1, 100))]


def insert(data: bytearray, rng: np.random.Generator) -> None:
    begin = int(rng.integers(0, len(data)))
    data[begin:begin] = rng.bytes(int(rng.integers(1, 100)))


def swap(data: bytearray, rng: np.random.Generator) -> None:
    """Swap two runs of bytes."""
    size = min(int(rng.choice([1, 8, 64, 4096])), len(data) // 2)
    a, b = sorted(int(at) for at in rng.integers(0, len(data) - 2 * size + 1, 2))
    b += size
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]


def blank(data: bytearray, rng: np.random.Generator) -> None:
    """Zero a page, as a disk that lost it does."""
    begin = int(rng.integers(0, len(data))) // 4096 * 4096
    data[begin : begin + 4096] = bytes(len(data[begin : begin + 4096]))


def redo_digit(data: bytearray, rng: np.random.Generator) -> None:
    """Change a number in the header or in the configuration."""
    places = [at for at, byte in enumerate(data[:3000]) if chr(byte).isdigit()]
    data[int(rng.choice(places))] = int(rng.integers(ord("0"), ord("9") + 1))


MUTATIONS: tuple[Mutation, ...] = (flip, cut, remove, insert, swap, blank, redo_digit)


def loaded(directory: Path) -> list[bytes]:
    """Return all numbers that a model reads from a packed directory."""
    checkpoint = Checkpoint(directory)
    spec, parameters = decoder_spec(checkpoint.config), PackedParameters(checkpoint)
    decoder = build_decoder(spec, parameters, ReferenceKernels(), 8)
    parameters.finish(spec.ignored_names)
    vectors = [name for name, info in checkpoint.tensors.items() if len(info.shape) == 1]
    return [
        *(weight.panels.tobytes() for weight in decoder.weights.values()),
        *(parameters.vector(name, checkpoint.tensors[name].shape[0]).tobytes() for name in sorted(vectors)),
    ]


def damage(count: int, seed: int, target: Path) -> Counter[str]:
    """Load mutated directories; count each error, and "" for intact ones."""
    rng, source = np.random.default_rng(seed), packed_of("llama3", "q4_0")
    shutil.copytree(source, target)
    intact, outcomes = loaded(source), Counter[str]()
    for index in range(count):
        name = "config.json" if index % 5 == 0 else "model.safetensors"
        data = bytearray((source / name).read_bytes())
        MUTATIONS[int(rng.integers(len(MUTATIONS)))](data, rng)
        (target / name).write_bytes(data)
        try:
            found = loaded(target)
        except FerrumError as error:
            outcomes[type(error).__name__] += 1
        else:
            assert found == intact, f"mutation {index} of seed {seed}"
            outcomes[""] += 1
        shutil.copyfile(source / name, target / name)
    return outcomes


def test_a_thousand_mutations_give_a_typed_error_or_the_right_weights(tmp_path):
    outcomes = damage(1000, 1, tmp_path / "m")
    assert outcomes["CheckpointError"] > 700, outcomes


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_hundred_thousand_mutations_give_a_typed_error_or_the_right_weights(tmp_path, seed):
    outcomes = damage(20_000, seed, tmp_path / "m")
    assert outcomes["CheckpointError"] > 14_000, outcomes


def test_the_checksum_detects_changed_bytes_words_and_pages():
    data = np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint8)
    known = checksum(data)
    for place in (0, 4095, 4096, 19_999):
        damaged = data.copy()
        damaged[place] += 1
        assert checksum(damaged) != known
    swapped = data.copy()
    swapped[8:16], swapped[16:24] = data[16:24], data[8:16]
    assert checksum(swapped) != known
    assert checksum(np.concatenate((data[4096:8192], data[:4096], data[8192:]))) != known
    assert checksum(data[:-1]) != known


def test_page_sums_equal_their_formula_in_python_integers():
    data = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8)
    expected = []
    for page in (data[:4096].tobytes(), data[4096:].tobytes().ljust(4096, b"\0")):
        total = 0
        for i in range(512):
            word, key = int.from_bytes(page[8 * i : 8 * i + 8], "little"), (i + 1) * 0x9E3779B97F4A7C15 % 2**64
            low, high = (word + key) % 2**32, ((word >> 32) + (key >> 32)) % 2**32
            total += low * high + word
        expected.append(total % 2**64)
    assert page_sums(data).tolist() == expected


@pytest.mark.parametrize("tier", TIERS)
def test_native_page_sums_equal_the_reference(tier):
    sums = NativeKernels(tier, 2).page_sums()
    rng = np.random.default_rng(2)
    for size in (0, 1, 4095, 4096, 4097, 400_000):
        data = rng.integers(0, 256, size, dtype=np.uint8)
        np.testing.assert_array_equal(sums(data), page_sums(data))
