"""Raw pages have one layout: what any kernels write, any others read."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels, PoolGroup
from ferrum.kernels.op_attributes import AttentionShape
from ferrum.kernels.reference import ReferenceKernels
from native_twin import TIERS, normal, tables_of

FORMATS = ("float32", "bfloat16", "int8")
PAGE_SIZES = (7, 16, 64, 128)
HEAD_DIMS = (16, 33, 40, 128, 144)


def all_kernels(group: PoolGroup) -> dict[str, Kernels]:
    """Return the reference and every tier, each with an empty pool."""
    made: dict[str, Kernels] = {"reference": ReferenceKernels()}
    made.update({tier: NativeKernels(tier, 1) for tier in TIERS})
    for kernels in made.values():
        kernels.allocate((group,))
    return made


def store(kernels: Kernels, group: PoolGroup, tokens: int) -> None:
    """Store random keys and values of one sequence in every layer, page after page."""
    rng = np.random.default_rng(3)
    heads, pages = group.num_kv_heads, np.arange(-(-tokens // group.page_size), dtype=np.int32)[None]
    for layer in range(group.num_layers):
        kernels.begin(tables_of(rng, [(0, tokens)], (group,))._replace(pages=(pages,)))
        k, v = normal(rng, tokens, heads * group.key_dim), normal(rng, tokens, heads * group.value_dim)
        shape = AttentionShape(0, layer, heads, heads, group.key_dim, 1.0, None, group.value_dim)
        kernels.rope_store(k, k, v, shape, None, None, None, 1e-6)


@pytest.mark.parametrize(("dim", "page_size", "format"), list(product(HEAD_DIMS, PAGE_SIZES, FORMATS)))
def test_pages_are_equal_to_the_byte_and_move_between_kernels(dim: int, page_size: int, format: str) -> None:
    group = PoolGroup("group", 3, page_size, 2, 3, dim, dim, format)
    made = all_kernels(group)
    for kernels in made.values():
        store(kernels, group, 2 * page_size)
    contents = {name: [kernels.read_page("group", page) for page in (0, 1)] for name, kernels in made.items()}
    for name, kernels in made.items():
        assert kernels.page_bytes("group") == len(contents[name][0])
        for page, content in enumerate(contents[name]):
            np.testing.assert_array_equal(content, contents["reference"][page], name)
            kernels.write_page("group", 2, contents["reference"][page])
            np.testing.assert_array_equal(kernels.read_page("group", 2), content, name)


@pytest.mark.parametrize(("page_size", "format"), list(product(PAGE_SIZES, FORMATS)))
def test_the_reference_keeps_the_numbers_of_a_page_that_it_reads(page_size: int, format: str) -> None:
    group = PoolGroup("group", 2, page_size, 2, 3, 40, 24, format)
    kernels = ReferenceKernels()
    kernels.allocate((group,))
    store(kernels, group, page_size)
    kernels.write_page("group", 1, kernels.read_page("group", 0))
    shape = AttentionShape(0, 1, 3, 3, 40, 1.0, None, 24)
    outputs = []
    for page in (0, 1):
        tables = tables_of(np.random.default_rng(0), [(page_size - 1, 1)], (group,))
        kernels.begin(tables._replace(pages=(np.array([[page]], np.int32),)))
        outputs.append(kernels.attention(np.ones((1, 120), np.float32), shape))
    np.testing.assert_array_equal(*outputs)
    assert np.abs(outputs[0]).max() > 0
