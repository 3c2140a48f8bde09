"""Panels of 32 outputs: the layout of quantised matrices in packed directories and native kernels.

A panel has outputs 32 p to 32 p + 31 (padded with zeros) and their blocks of inputs in order. A block of a panel is

    d       of the 32 outputs, 2 bytes each, little-endian
    m       likewise, if the format has minima
    sub     for each group the integer scales of the 32 outputs, a byte each, if the format has them
    sub_m   likewise
    codes   for each group its rows

where a row is 32 words of 4 bytes, one per output, for the words of 4 inputs in order:

    8 bits       a row per word of inputs: the stored codes; those of fp8 in the order 0, 2, 1, 3
    4 to 6 bits  a row per two words: the low four bits of the first word's codes in the low halves of the bytes, those
                 of the second word in the high halves
    5 bits       then a row of fifth bits: bit i of byte j belongs to input 4 i + j
    6 bits       then a row of upper bits: bits 2 i and 2 i + 1 of byte j belong to input 4 i + j

Blocks of `low_bits.py` keep their bytes: a panel has each field of a block for its 32 outputs together, in the order of
the file.

Panels of a format with scales of outputs begin with them: the 32 factors, then the 32 divisors, in float32.

Every part fills whole cache lines or is a half of one, and all instruction sets use the same bytes
(`native/src/block_format.hpp` states the same layout).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import Int32
from ferrum.quant.block_format import BlockFormat
from ferrum.quant.low_bits import LowBits

LANES: Final = 32
"""Outputs of a panel."""

OUTPUT_SCALES: Final = LANES * 8
"""Bytes of the scales of outputs of a panel."""

_PIECE: Final = 1 << 20
"""Codes laid out at a time, so that what is made on the way stays in the caches."""


class StoredRows(Protocol):
    """Rows of a matrix; see `BlockRows`."""

    @property
    def codes(self) -> NDArray[np.uint8]: ...
    @property
    def d(self) -> NDArray[Any]: ...
    @property
    def m(self) -> NDArray[Any] | None: ...
    @property
    def sub(self) -> NDArray[Any] | None: ...
    @property
    def sub_m(self) -> NDArray[np.uint8] | None: ...


def panel_shape(kind: BlockFormat, shape: tuple[int, int]) -> tuple[int, int, int]:
    """Return [panels, blocks, bytes] of a matrix [N, K]; with scales of outputs, [panels, 1, bytes]."""
    per_block = LANES * kind.low.nbytes if kind.low else _header_bytes(kind) + kind.groups * _code_bytes(kind)
    panels, blocks = -(-shape[0] // LANES), kind.blocks(shape[1])
    return (panels, 1, OUTPUT_SCALES + blocks * per_block) if kind.output_scales else (panels, blocks, per_block)


def _header(kind: BlockFormat) -> dict[str, tuple[int, np.dtype[Any]]]:
    """Return the parts before the codes: their numbers per output, and dtypes."""
    parts = {"d": (1, kind.scale)}
    if kind.minima:
        parts["m"] = (1, kind.scale)
    if kind.sub is not None:
        parts["sub"] = (kind.groups, kind.sub)
        if kind.minima:
            parts["sub_m"] = (kind.groups, kind.sub)
    return parts


def _header_bytes(kind: BlockFormat) -> int:
    return sum(LANES * count * dtype.itemsize for count, dtype in _header(kind).values())


def _code_bytes(kind: BlockFormat) -> int:
    """Bytes of a group's codes."""
    return LANES * kind.group * kind.bits // 8


def panels_of(kind: BlockFormat, rows: StoredRows) -> NDArray[np.uint8]:
    """Return the panels of a matrix."""
    outputs, groups, size = rows.codes.shape
    out = np.empty(panel_shape(kind, (outputs, groups * size)), np.uint8)
    step = max(1, _PIECE // (LANES * groups * size))
    for begin in range(0, len(out), step):
        _fill(kind, rows, slice(LANES * begin, LANES * (begin + step)), out[begin : begin + step])
    return out


def _fill(kind: BlockFormat, rows: StoredRows, lanes: slice, out: NDArray[np.uint8]) -> None:
    """Write the panels of some outputs."""
    panels, blocks, _ = out.shape
    at = 0
    for name, (count, dtype) in _header(kind).items():
        numbers = getattr(rows, name)[lanes].astype(dtype.newbyteorder("<"))
        columns = _padded(numbers, panels).reshape(panels, LANES, blocks, count).transpose(0, 2, 3, 1)
        part = np.ascontiguousarray(columns).view(np.uint8).reshape(panels, blocks, -1)
        out[..., at : at + part.shape[2]] = part
        at += part.shape[2]
    codes = _padded(rows.codes[lanes], panels, kind.offset).reshape(panels, LANES, blocks, kind.groups, -1, 4)
    words = codes.transpose(0, 2, 3, 4, 1, 5)  # [panel, block, group, word, lane, 4]
    out[..., at:] = _pack(kind, words).reshape(panels, blocks, -1)


def _padded(numbers: NDArray[Any], panels: int, fill: int = 0) -> NDArray[Any]:
    padded = np.full((panels * LANES, *numbers.shape[1:]), fill, numbers.dtype)
    padded[: len(numbers)] = numbers
    return padded


def _pack(kind: BlockFormat, words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack codes [..., word, lane, 4] into rows [..., row, lane, 4]."""
    if kind.bits == 8:
        whole = np.ascontiguousarray(words.view("<u4"))  # as words, which is faster
        return (_crossed(whole) if kind.float8 else whole).view(np.uint8)
    low = words & np.uint8(15)
    rows = low[..., 0::2, :, :] | low[..., 1::2, :, :] << np.uint8(4)
    width = kind.bits - 4
    if width == 0:
        return rows
    upper = np.zeros((*words.shape[:-3], 1, *words.shape[-2:]), np.uint8)
    for word in range(words.shape[-3]):
        upper[..., 0, :, :] |= words[..., word, :, :] >> np.uint8(4) << np.uint8(width * word)
    return np.concatenate((rows, upper), axis=-3)


def _crossed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return words with their second and third bytes exchanged."""
    ends, second, third = (words & np.uint32(mask) for mask in (0xFF0000FF, 0xFF00, 0xFF0000))
    crossed: NDArray[np.uint32] = ends | second << np.uint32(8) | third >> np.uint32(8)
    return crossed


def rows_of(kind: BlockFormat, panels: NDArray[np.uint8], ids: Int32) -> dict[str, NDArray[Any]]:
    """Return some outputs of a matrix in panels [panels, blocks, bytes], as the parts of `BlockRows`."""
    blocks, at = panels.shape[1], 0
    arrays: dict[str, NDArray[Any]] = {}
    for name, (count, dtype) in _header(kind).items():
        size = LANES * count * dtype.itemsize
        lanes = panels[..., at : at + size].reshape(*panels.shape[:2], count, LANES, dtype.itemsize)
        own = np.ascontiguousarray(lanes[ids // LANES, :, :, ids % LANES])  # [n, blocks, count, bytes]
        arrays[name] = own.view(dtype.newbyteorder("<")).astype(dtype).reshape(len(ids), blocks * count)
        at += size
    rows = panels[..., at:].reshape(panels.shape[0], blocks, kind.groups, -1, LANES, 4)
    words = _unpack(kind, rows[ids // LANES, :, :, :, ids % LANES])  # [n, blocks, groups, word, 4]
    arrays["codes"] = words.reshape(len(ids), blocks * kind.groups, kind.group)
    return arrays


def _unpack(kind: BlockFormat, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack rows [..., row, 4] into codes [..., word, 4]."""
    if kind.bits == 8:
        return _crossed(rows.view("<u4")).view(np.uint8) if kind.float8 else rows
    count = kind.group // 4
    nibbles = rows[..., : count // 2, :]
    words = np.stack((nibbles & np.uint8(15), nibbles >> np.uint8(4)), axis=-2)
    words = words.reshape(*rows.shape[:-2], count, 4)
    width = kind.bits - 4
    if width == 0:
        return words
    shifts = (np.arange(count) * width).astype(np.uint8)[:, None]
    upper = rows[..., count // 2 :, :] >> shifts & np.uint8((1 << width) - 1)
    whole: NDArray[np.uint8] = words | upper << np.uint8(4)
    return whole


def panels_of_blocks(low: LowBits, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the panels of blocks [N, B, bytes] of a file."""
    panels = -(-len(blocks) // LANES)
    lanes = _padded(blocks, panels).reshape(panels, LANES, *blocks.shape[1:]).transpose(0, 2, 1, 3)
    fields = [lanes[..., begin : begin + width].reshape(*lanes.shape[:2], -1) for begin, width in low.fields]
    return np.concatenate(fields, axis=2)


def blocks_of_panels(low: LowBits, panels: NDArray[np.uint8], ids: Int32) -> NDArray[np.uint8]:
    """Return the blocks [n, B, bytes] of some outputs of a matrix in panels."""
    lanes, at = ids % LANES, 0
    out = np.empty((len(ids), panels.shape[1], low.nbytes), np.uint8)
    for begin, width in low.fields:
        field = panels[..., at : at + LANES * width].reshape(*panels.shape[:2], LANES, width)
        out[..., begin : begin + width] = field[ids // LANES, :, lanes]
        at += LANES * width
    return out


def with_output_scales(panels: NDArray[np.uint8], scales: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return panels [panels, blocks, bytes] as [panels, 1, bytes], with the scales of outputs [N, 2] first."""
    count = len(panels)
    lanes = _padded(scales.astype("<f4"), count, 1).reshape(count, LANES, 2).swapaxes(1, 2)
    head = np.ascontiguousarray(lanes).reshape(count, -1).view(np.uint8)
    return np.concatenate((head, panels.reshape(count, -1)), axis=1)[:, None]


def output_scales_of(
    low: LowBits, panels: NDArray[np.uint8], ids: Int32
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return panels [panels, 1, bytes] without the scales of outputs, and those of some outputs [n, 2]."""
    count = len(panels)
    head = np.ascontiguousarray(panels[:, 0, :OUTPUT_SCALES]).view("<f4").astype(np.float32).reshape(count, 2, LANES)
    return panels[:, 0, OUTPUT_SCALES:].reshape(count, -1, LANES * low.nbytes), head[ids // LANES, :, ids % LANES]
