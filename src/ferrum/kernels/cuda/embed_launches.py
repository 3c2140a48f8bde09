"""Launches of embeddings: of tables of floats by native/cuda/float_embed.cu, of blocks by embed.cu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ferrum.kernels.cuda.device_weights import DeviceWeight
from ferrum.kernels.cuda.driver import THREADS
from ferrum.kernels.cuda.float_launches import FLOATS
from ferrum.kernels.cuda.ground import Ground
from ferrum.kernels.cuda.launches import Launch, Operand, blocks_for
from ferrum.kernels.cuda.product_launches import codebook
from ferrum.kernels.group_weights import PANEL

_BLOCK_INPUTS: Final = 256
"""Inputs of a block of threads of embed.cu: a unit of 32 for each warp."""


def embed(ground: Ground, table: DeviceWeight, scale: float, stride: int, offset: int, out: Operand) -> list[Launch]:
    """Return the launch of `Operations.embed`. Given rows replace those of a table with one row for each token."""
    tables, floats = ground.tables, table.format in FLOATS
    replaced = tables.given_of if stride == 1 and tables.given else 0
    module = f"float_embed:{FLOATS[table.format]}" if floats else f"embed:{table.format}"
    inputs = out.count, tables.token_ids, replaced, tables.given
    matrix = table.panels, table.order, codebook(ground, table.format)
    sizes = table.shape[1], stride, offset, table.nbytes // blocks_for(table.shape[0], PANEL)
    values = (*inputs, *matrix, out.address, *sizes, float(scale))
    grid = blocks_for(table.shape[1], THREADS if floats else _BLOCK_INPUTS), out.capacity, 1
    return [Launch(module, "embed_rows", grid, values)]


def add_given(ground: Ground, x: Operand, offset: int, out: Operand) -> list[Launch]:  # noqa: ARG001
    """Return nothing: steps with numbers to add are refused."""
    return []


LOWERINGS: Final[dict[str, Callable[..., list[Launch]]]] = {"embed": embed, "add_given": add_given}
