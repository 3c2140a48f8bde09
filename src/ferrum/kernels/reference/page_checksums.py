"""Sums of pages of 4 KiB, for checksums at the speed of reading memory. They find damage, not tampering."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_PAGE: Final = 4096
_PIECE: Final = 64  # pages at a time: a few temporary arrays of them stay in the cache
_KEYS: Final = np.arange(1, _PAGE // 8 + 1, dtype="<u8") * np.uint64(0x9E3779B97F4A7C15)


def page_sums(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a sum of each 4 KiB page, the last one padded with zeros: uint64 [pages].

    Word i of a page, 64 bits, counts as (low + a_i) x (high + b_i) + itself, where b_i, a_i are the halves of
    (i + 1) x 0x9e3779b97f4a7c15; the halves are added modulo 2^32, all else modulo 2^64. (The products are those of NH,
    "UMAC: fast and secure message authentication", Black and others 1999, section 3; the word itself is added for the
    one value in 2^32 that would hide its other half.)
    """
    whole = data[: len(data) // _PAGE * _PAGE].reshape(-1, _PAGE)
    end = np.zeros((-(-len(data) // _PAGE) - len(whole), _PAGE), np.uint8)
    end.reshape(-1)[: len(data) - whole.size] = data[whole.size :]
    pieces = [whole[begin : begin + _PIECE] for begin in range(0, len(whole), _PIECE)]
    return np.concatenate([_sums_of(piece.view("<u8")) for piece in (*pieces, end)])


def _sums_of(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    halves = words.view("<u4") + _KEYS.view("<u4")  # modulo 2^32
    products = halves[:, 0::2].astype(np.uint64) * halves[:, 1::2]
    sums: NDArray[np.uint64] = (products + words).sum(axis=1, dtype=np.uint64)
    return sums
