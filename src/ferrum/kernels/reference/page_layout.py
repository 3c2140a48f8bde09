"""The bytes of a raw page, the same for all kernels: the layout of the native pool (`native/src/kernel_table.hpp`).

A page is [layers, kv_heads, blocks] of keys, key scales, values, value scales. Scales, f32 per token, are in int8 only.
Values of width 0, which are a part of their keys, take nothing.

    block   64 tokens, or the whole page if 64 does not divide it, padded to whole words of 4 bytes
    keys    [block / side, words, side, pair]      side: 16 tokens, or the block; pair: elements of a word
    values  per 64 dimensions, or the remainder: [block / pair, dimensions, pair]

Elements of keys fill whole words, those of values a multiple of 16. int8 keys are stored as code + 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.operations import Bytes
from ferrum.kernels.reference.reference_attention import STEP
from ferrum.kernels.reference.store import ELEMENT

KEY_SIDE: Final = 16
"""Adjacent tokens of keys."""

VALUE_SIDE: Final = 64
"""Adjacent dimensions of values."""

_VALUE_MULTIPLE: Final = 16
_KEY_FLIP: Final = np.uint8(128)

Parts = tuple[NDArray[Any], ...]
"""Elements [layers, tokens, kv_heads, dim] of a page, and with int8 the scales [layers, tokens, kv_heads]."""


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The layout of raw pages of a layer group."""

    group: PoolGroup

    @property
    def nbytes(self) -> int:
        """Bytes of a page."""
        tokens = self.block * self.blocks
        group = self.group
        widths = [width for width in (self.padded_keys, self.padded_values) if width]
        return group.num_layers * group.num_kv_heads * tokens * sum(width * self.item + self.scale for width in widths)

    def pack(self, keys: Parts, values: Parts) -> Bytes:
        """Return the bytes of a page, u8 [nbytes]."""
        elements = _padded(keys[0].view(f"u{self.item}"), self.padded_keys)
        laid = [self._keys(elements ^ _KEY_FLIP if self.scale else elements), *map(self._scales, keys[1:])]
        if self.group.value_dim:
            laid += [self._values(values[0].view(f"u{self.item}")), *map(self._scales, values[1:])]
        return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in laid], axis=-1).reshape(-1)

    def unpack(self, data: Bytes, keys: Parts, values: Parts) -> None:
        """Write the bytes of a page to the parts, which are views of a pool."""
        rows = data.reshape(self.group.num_layers, self.group.num_kv_heads, self.blocks, -1)
        begin = 0
        for parts, lay_out in ((keys, self._keys), (values, self._values))[: 2 if self.group.value_dim else 1]:
            for part, place in zip(parts, (lay_out, self._scales), strict=False):
                # The layout of element numbers shows where each element is; 0 is padding.
                numbers = place(np.arange(1, part.size + 1).reshape(part.shape))
                size = numbers.shape[-1] * part.itemsize
                found = rows[..., begin : begin + size].copy().view(part.dtype)
                flat = np.empty(part.size, part.dtype)
                flat[numbers[numbers > 0] - 1] = found[numbers > 0]
                part[...] = flat.reshape(part.shape)
                begin += size
        if self.scale:
            keys[0].view(np.uint8)[...] ^= _KEY_FLIP

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return int(ELEMENT[self.group.format].itemsize)

    @property
    def scale(self) -> int:
        """Bytes of the scale of a token."""
        return 4 if self.group.format == "int8" else 0

    @property
    def pair(self) -> int:
        """Elements of a word."""
        return 4 // self.item

    @property
    def block(self) -> int:
        """Tokens of a block."""
        size = self.group.page_size
        return STEP if size % STEP == 0 else _round_up(size, self.pair)

    @property
    def blocks(self) -> int:
        """Blocks of a page."""
        return _round_up(self.group.page_size, self.block) // self.block

    @property
    def padded_keys(self) -> int:
        """Elements of a stored key."""
        return _round_up(self.group.key_dim, self.pair)

    @property
    def padded_values(self) -> int:
        """Elements of a stored value."""
        return _round_up(self.group.value_dim, _VALUE_MULTIPLE)

    def _keys(self, x: NDArray[Any]) -> NDArray[Any]:
        side = KEY_SIDE if self.block % KEY_SIDE == 0 else self.block
        blocks = self._in_blocks(x, self.padded_keys)
        words = blocks.reshape(*blocks.shape[:3], self.block // side, side, -1, self.pair)
        return words.swapaxes(4, 5).reshape(*blocks.shape[:3], -1)

    def _values(self, x: NDArray[Any]) -> NDArray[Any]:
        blocks = self._in_blocks(x, self.padded_values)
        words = blocks.reshape(*blocks.shape[:3], self.block // self.pair, self.pair, -1).swapaxes(4, 5)
        starts = range(0, self.padded_values, VALUE_SIDE)
        sides = [words[..., first : first + VALUE_SIDE, :].reshape(*blocks.shape[:3], -1) for first in starts]
        return np.concatenate(sides, axis=-1)

    def _scales(self, x: NDArray[Any]) -> NDArray[Any]:
        return self._in_blocks(x[..., None], 1)[..., 0]

    def _in_blocks(self, x: NDArray[Any], padded: int) -> NDArray[Any]:
        """Return x [layers, tokens, kv_heads, dim] as [layers, kv_heads, blocks, block, padded], padded with zeros."""
        layers, tokens, heads, _ = x.shape
        room = self.block * self.blocks
        whole = np.pad(_padded(x, padded), ((0, 0), (0, room - tokens), (0, 0), (0, 0)))
        return whole.transpose(0, 2, 1, 3).reshape(layers, heads, self.blocks, self.block, padded)


def _padded(x: NDArray[Any], columns: int) -> NDArray[Any]:
    """Return x [..., dim] padded with zeros to [..., columns]."""
    return np.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, columns - x.shape[-1]),))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
