"""NF4 of bitsandbytes: sixteen floats, and a scale for each 64 inputs ("QLoRA", Dettmers et al., 2023, appendix E).

    weight = table[code] * scale      rounded once, to float32

The table holds no integers, so products take the weights as float32 numbers. A block has its scale in float32, then
pairs of codes, the first in the low four bits. Panels keep these bytes, as those of blocks of GGUF files
(`low_bits.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrum.kernels.operations import F32
from ferrum.quant.bit_words import pairs
from ferrum.quant.low_bits import U8, Decoded, LowBits

BLOCK: Final = 64

NF4: Final[F32] = np.array(
    (
        *(-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1),
    ),
    np.float32,
)


def _decode(blocks: U8) -> Decoded:
    scales = np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float32)
    return Decoded(NF4[pairs(blocks[:, 4:])][:, None], scales)


NORMAL_FLOATS: Final = LowBits(BLOCK, 4 + BLOCK // 2, BLOCK, ((4, 9),), (), _decode)


def blocks_of(packed: U8, scales: F32) -> U8:
    """Return blocks, uint8 [N, B, bytes].

    Args:
        packed: pairs of codes, the first in the high four bits, as bitsandbytes stores them, uint8 [N, B, 32].
        scales: f32 [N, B].
    """
    turned = packed >> np.uint8(4) | packed << np.uint8(4)
    return np.concatenate((scales.astype("<f4").view(np.uint8).reshape(*scales.shape, 4), turned), axis=2)
