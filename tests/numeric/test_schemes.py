"""Schemes of quantisation: the format of each matrix of a model."""

from __future__ import annotations

import math

import pytest

from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_quantizers import QUANTIZERS
from ferrum.quant.panels import panel_shape
from ferrum.quant.schemes import SCHEMES

Sizes = dict[str, int]

SMALL = {"layers": 30, "hidden": 576, "kv": 192, "inner": 1536, "vocabulary": 49152}
TIED = {"layers": 28, "hidden": 1024, "kv": 1024, "inner": 3072, "vocabulary": 151936}
LARGE = {"layers": 32, "hidden": 4096, "kv": 1024, "inner": 14336, "vocabulary": 128256}
FULL_HEADS = {"layers": 32, "hidden": 4096, "kv": 4096, "inner": 11008, "vocabulary": 32000}


def shapes_of(sizes: Sizes, *, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama model."""
    hidden, inner, outer = sizes["hidden"], sizes["inner"], (sizes["vocabulary"], sizes["hidden"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": outer, "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = outer
    for layer in range(sizes["layers"]):
        own = {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (sizes["kv"], hidden),
            "self_attn.v_proj": (sizes["kv"], hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        shapes.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()})
    return shapes


def nbytes(shapes: dict[str, tuple[int, ...]], formats: dict[str, str]) -> int:
    """Return the bytes of a model's panels."""
    found = 0
    for name, format in formats.items():
        outputs, inputs = shapes[name]
        found += math.prod(panel_shape(BLOCK_FORMATS[format], (outputs, inputs)))
    return found


MODELS = pytest.mark.parametrize(
    ("sizes", "tied", "peer_bits"),
    [(SMALL, True, 6.159), (TIED, True, 5.322), (LARGE, False, 4.894), (FULL_HEADS, False, 4.844)],
)
"""Bits a weight of llama.cpp's Q4_K_M, by its rule: Q6_K for the head and half of value and down projections."""


@MODELS
def test_q4_k_m_is_no_larger_than_that_of_llama_cpp(sizes: Sizes, tied: bool, peer_bits: float) -> None:
    shapes = shapes_of(sizes, tied=tied)
    formats = SCHEMES["q4_k_m"].formats(shapes)
    numbers = sum(math.prod(shapes[name]) for name in formats)
    bits = 8 * nbytes(shapes, formats) / numbers
    assert peer_bits - 0.05 < bits <= peer_bits


@MODELS
@pytest.mark.parametrize("name", SCHEMES)
def test_every_matrix_gets_a_format_that_holds_its_rows(name: str, sizes: Sizes, tied: bool, peer_bits: float) -> None:
    shapes = shapes_of(sizes, tied=tied)
    formats = SCHEMES[name].formats(shapes)
    assert set(formats) == {each for each, shape in shapes.items() if len(shape) == 2}
    for each, format in formats.items():
        assert format in QUANTIZERS
        assert shapes[each][1] % BLOCK_FORMATS[format].block == 0


def test_value_projections_get_more_bits_than_gates() -> None:
    formats = SCHEMES["q4_k_m"].formats(shapes_of(LARGE, tied=False))
    assert formats["model.layers.5.self_attn.v_proj.weight"] == "q6_k"
    assert formats["model.layers.5.mlp.gate_proj.weight"] == "q4_k"


def test_old_names_mean_their_successors() -> None:
    assert SCHEMES["int8"] is SCHEMES["q8_0"]
    assert SCHEMES["int4"] is SCHEMES["q4_k_m"]


def test_a_tied_embedding_is_the_head() -> None:
    tied, own = (SCHEMES["q4_0"].formats(shapes_of(TIED, tied=tied)) for tied in (True, False))
    assert tied["model.embed_tokens.weight"] == own["lm_head.weight"] == "q6_k"
    assert own["model.embed_tokens.weight"] == "q4_0"
