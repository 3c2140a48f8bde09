"""Schemes by the name that `--quantize` takes: the format of every matrix of a model.

`q4_k_m` spends at most the bytes of llama.cpp's Q4_K_M where they save most error. It knows how much the KL divergence
grows with the squared error of each kind of matrix, measured on SmolLM2-135M (`docs/quantization.md`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.gguf_blocks import GGUF_TYPES

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by the name of a tensor, as in a checkpoint of Hugging Face. Vectors are ignored."""

_SENSITIVITY: Final = {
    "v_proj": 20.0, "k_proj": 5.0, "down_proj": 4.0, "q_proj": 2.0, "o_proj": 2.0, "up_proj": 1.7, "gate_proj": 1.0,
    "lm_head": 4.5,
}  # fmt: skip
"""KL divergence by the squared error of a weight, relative to gate projections."""

_USUAL: Final = 2.0
"""The sensitivity of other matrices."""

_ERRORS: Final = {"q4_k": 1.0, "q5_k": 0.23, "q6_k": 0.065, "q4_1": 0.95, "q5_0": 0.3, "q5_1": 0.22, "q8_0": 0.005}
"""Squared errors of formats, relative to q4_k."""

_LADDERS: Final = (("q4_1", "q5_0", "q5_1", "q8_0"), ("q4_k", "q5_k", "q6_k", "q8_0"))
"""Formats by size, for rows that are no multiple of 256 and for those that are."""

_EMBEDDING: Final = "embed_tokens"
_HEAD: Final = "lm_head"


@dataclass(frozen=True, slots=True)
class Scheme:
    """Formats of a model's matrices.

    Attributes:
        name: as in `--quantize`.
        choose: shapes of all tensors -> format of each matrix, a key of `QUANTIZERS`.
    """

    name: str
    choose: Callable[[Shapes], dict[str, str]]

    def formats(self, shapes: Shapes, exact: Collection[str] = ()) -> dict[str, str]:
        """Return the format of each matrix but the exact ones, which stay in float32."""
        return self.choose({name: shape for name, shape in shapes.items() if name not in exact})


def _q8_0(shapes: Shapes) -> dict[str, str]:
    return {name: "q8_0" for name, shape in shapes.items() if len(shape) == 2}


def _q6_k(shapes: Shapes) -> dict[str, str]:
    return {name: _fallback("q6_k", shape[1]) for name, shape in shapes.items() if len(shape) == 2}


def _q4_0(shapes: Shapes) -> dict[str, str]:
    """Return q4_0 except for the head, as llama.cpp does."""
    found = _q6_k(shapes)
    head = _head_of(shapes)
    return {name: found[name] if _kind(name) == head else "q4_0" for name in found}


def _q4_k_m(shapes: Shapes) -> dict[str, str]:
    """Return the mix with the least estimated divergence that is no larger than llama.cpp's Q4_K_M."""
    matrices = {name: (shape[0], shape[1]) for name, shape in shapes.items() if len(shape) == 2}
    head = _head_of(shapes)
    last = max((_layer(name) for name in matrices), default=0)
    found, room, steps = {}, 0.0, []
    for name, (outputs, inputs) in matrices.items():
        ladder, kind = _LADDERS[inputs % 256 == 0], _kind(name)
        found[name] = ladder[0]
        room += outputs * inputs * (_file_bits(_llama(name, inputs, last + 1, head)) - _bits(ladder[0]))
        sensitivity = _SENSITIVITY[_HEAD] if kind == head else _SENSITIVITY.get(kind, _USUAL)
        for lower, higher in pairwise(ladder):
            cost = _bits(higher) - _bits(lower)
            gain = sensitivity * (_ERRORS[lower] - _ERRORS[higher]) / cost
            to_end = min(_layer(name), last - _layer(name))
            steps.append((-gain, to_end, name, lower, higher, outputs * inputs * cost))
    for _, _, name, lower, higher, cost in sorted(steps):
        if found[name] == lower and cost <= room:
            found[name] = higher
            room -= cost
    return found


def is_head(name: str, names: Iterable[str]) -> bool:
    """Return whether a matrix gives the logits, in a model with tensors of these names."""
    return _kind(name) == _head_of(names)


def _head_of(names: Iterable[str]) -> str:
    """Return the kind of the matrix that gives the logits: the head, or the embedding of a model without one."""
    return _HEAD if any(_kind(name) == _HEAD for name in names) else _EMBEDDING


def _kind(name: str) -> str:
    """Return the part of a name that says what the matrix is for; its rows may have another one (`q_proj.halves`)."""
    parts = name.removesuffix(".weight").split(".")
    return parts[-2] if len(parts) > 1 and parts[-2] in _SENSITIVITY else parts[-1]


def _layer(name: str) -> int:
    """Return the layer of a tensor; 0 outside the layers."""
    found = re.search(r"\.layers\.(\d+)\.", f".{name}")
    return int(found[1]) if found else 0


def _bits(format: str) -> float:
    """Return the bits of a weight in panels."""
    kind = BLOCK_FORMATS[format]
    numbers = 2 if kind.minima else 1
    integers = 0 if kind.sub is None else kind.groups
    return kind.bits + numbers * (16 + 8 * integers) / kind.block


def _file_bits(format: str) -> float:
    """Return the bits of a weight in a GGUF file."""
    kind = GGUF_TYPES[format.upper()]
    return kind.nbytes * 8 / kind.numbers


def _fallback(format: str, inputs: int) -> str:
    """Return llama.cpp's substitute of a format for rows that are no multiple of 256."""
    return format if inputs % 256 == 0 else {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}[format]


def _llama(name: str, inputs: int, layers: int, head: str) -> str:
    """Return the format that llama.cpp's Q4_K_M gives a matrix."""
    kind, layer, eighth = _kind(name), _layer(name), layers // 8
    more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    wide = kind == head or (kind in ("v_proj", "down_proj") and more)
    return _fallback("q6_k" if wide else "q4_k", inputs)


_OWN: Final = (Scheme("q8_0", _q8_0), Scheme("q6_k", _q6_k), Scheme("q4_k_m", _q4_k_m), Scheme("q4_0", _q4_0))

SCHEMES: Final[Mapping[str, Scheme]] = {
    **{each.name: each for each in _OWN},
    "int8": _OWN[0],
    "int4": _OWN[2],
}
"""Schemes by the value of the option `quantize`."""
