"""GGUF types whose codes number the points of a codebook: IQ3_S and IQ3_XXS.

A point has four magnitudes, each of eight possible ones. A codebook is the set of its points in ascending order, the
last number first. Layouts and points: ggml's `ggml-common.h` and `ggml-quants.c`.
"""

from __future__ import annotations

from base64 import b85decode
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Bytes

_MAGNITUDES: Final = {
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
}

_IQ3_S: Final = (
    b"r&l8gr3wX-7bA%x5C9?sqe&tWqzV8D2qFba5CwoD0f-U=2?78C6aYmCq5wb$Knef?00aO66#zvD01*HH7pnzQ08j!1OA!JI0tEm;0i+QG2_O"
    b"Lkk_mzl0ssU7C=>t+L=gZ00to^I00IC2005ByPyhe`3Izfn0ssU7t5u2xDg}Tk1&JgQ1Ofm6k^l;U0*C+-B?1%*1OY$*f&d950ssIc5CQ~%0"
    b"SEvAg#ZEo03ZSYAOb)E2mt^91gZoolmZ9>Di8_)0RRC+0R#aQ009610uhP<iXZ?82tot`00a>L0tFxh5I_J306+i$0ssI23IGKl000005d@J"
    b"00s#O4gbD;92qFLg3Lydr0e}Pn5DEn%000001pp9$0RR93pa22@000C400;mO0003103iSY2m$~A1Q7%Pkpw^xDg*)q000040Rjj?00;m8ga"
    b"Lp65CR|w5&!`NKmY&$00ck)015yA000001ONa46aWMO0000004e|q000310RVvj000mG00aOK1Rw+f0T2QJ0RR91001BW2mk~C2><{P00031"
    b"AOHXW0RR91015yA00000kpKli0T2WL1OgBMC;$Ke5<vn100IC21ONae00;m8A_xHh00961000C41ONa41ONa6000000RR9100000"
)
_IQ3_XXS: Final = (
    b"6^aD{1ONai3I!qs0uTTJ6#@l{0D=G@f(0M|0000100;np5P$$Ef&c&n00aO40000W000mG08sz{2mk^A3Iz%kfB^si1p);C000003IzfI000"
    b"041pom8Kmb4hA^-pY00961000pHKmY&&AOHXW00000000C40RR911qww11ONa4Dg^=o004*q1%d^D0U!VX0ucZJ0000H0000W00;m82mpWp0"
    b"ssII00000000003P1n=AOHXW0tE^H00AHb1pom8Pyhe`3IQMh00aO800ICA0000000001fB*mlK>!2*03ZMW01yB`000O800008000315P$%"
    b"n0Ehqp000000000G0004i0RTY&fB*mhAOHXW5C8xG00IyI001BW2mk;90000000000AO!#c0000000aO40ssI3K>$Di03ZMW01yBK000041O"
    b"Na400;m800D>q000041ONa6000000000000961000mG1ONa4000mGPyi4B00062000620Du4h000mG0000%00000000005C8xGAOHXW00aO4"
    b"00008000002mk^A00000r~v>300aO4002M$0RR9100aO4AOrva0U!Vf00031000620ssI21pp8L0000000001000000000000000"
)
_POINTS: Final = {"IQ3_S": _IQ3_S, "IQ3_XXS": _IQ3_XXS}
"""A bit for each of 8^4 points, the lowest first: whether it is in the codebook."""


@cache
def _codebook(kind: str) -> Bytes:
    """Return the points of a type, [points, 4]."""
    held = np.flatnonzero(np.unpackbits(np.frombuffer(b85decode(_POINTS[kind]), np.uint8), bitorder="little"))
    points: Bytes = np.array(_MAGNITUDES[kind], np.uint8)[held[:, None] >> np.array((0, 3, 6, 9)) & 7]
    return points


def _signed(magnitudes: Bytes, negative: Bytes) -> NDArray[np.int8]:
    return np.where(negative.reshape(magnitudes.shape) != 0, -magnitudes.view(np.int8), magnitudes.view(np.int8))


def _bits(words: Bytes) -> Bytes:
    return np.unpackbits(words, axis=-1, bitorder="little")


def iq3_s(blocks: Bytes) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return the integers of blocks [N, B, 110], [N, B, 256], and their scales by 32 of them, [N, B, 8].

    A number is d times the scale times the integer.
    """
    points = blocks[..., 2:66] | _bits(blocks[..., 66:74]).astype(np.uint16) << np.uint16(8)
    magnitudes = _codebook("IQ3_S")[points].reshape(*blocks.shape[:2], 256)
    fours = blocks[..., 106:110, None] >> np.array((0, 4), np.uint8) & np.uint8(15)
    scales = (fours << np.uint8(1) | np.uint8(1)).reshape(*blocks.shape[:2], 8)
    return _signed(magnitudes, _bits(blocks[..., 74:106])), scales.view(np.int8)


def iq3_xxs(blocks: Bytes) -> F32:
    """Return the numbers of blocks [n, 98], f32 [n, 256].

    A number is d / 4 times an odd scale times an integer up to 62. No block format holds d / 4, or d / 2 and integers
    up to 31: both leave float16 where d is small, as it is in most models.
    """
    magnitudes = _codebook("IQ3_XXS")[blocks[:, 2:66]].reshape(len(blocks), 8, 4, 8)
    words = np.ascontiguousarray(blocks[:, 66:]).view("<u4")  # [n, 8]: four times seven signs, and a scale
    seven = _bits((words[..., None] >> np.array((0, 7, 14, 21), np.uint32)).astype(np.uint8)[..., None])[..., :7]
    even = np.bitwise_xor.reduce(seven, axis=-1, keepdims=True)  # the number of minus signs is even
    integers = _signed(magnitudes, np.concatenate((seven, even), axis=-1)).astype(np.float32)
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):
        scales = d * ((words >> np.uint32(28)).astype(np.float32) + np.float32(0.5)) * np.float32(0.5)
        numbers: F32 = (integers.reshape(len(blocks), 8, 32) * scales[..., None]).reshape(len(blocks), 256)
    return numbers
