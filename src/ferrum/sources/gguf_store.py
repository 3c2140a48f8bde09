"""`GgufStore`: tensors of GGUF files under other names; the base of the stores of text models and of towers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.quant.block_weight import FileWeight
from ferrum.quant.dense import FORMATS, by_rows
from ferrum.quant.gguf_blocks import GGUF_TYPES, GgufWeight, dequantize, weight_of
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.gguf_file import GgufFile, GgufTensor
from ferrum.sources.tensor_file import FORMAT_OF, TensorInfo

Shape = tuple[int, ...]


class GgufStore(TensorStore):
    """Tensors of GGUF files.

    Floats are views of the mapped file. Other types are dequantised to float32 when read, with exactly the numbers of
    the file. Rows that a converter has permuted are put back.

    Args:
        path: the model, for messages.
        config: its configuration.
        places: each tensor's file, and its name there, by its name in the Hugging Face layout.
        shape_of: returns the shape of a tensor in that layout from its name there and its shape in the file.

    Attributes: see `TensorStore`.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        places: Mapping[str, tuple[GgufFile, str]],
        shape_of: Callable[[str, Shape], Shape],
    ) -> None:
        self.directory, self.config, self.headless = path, config, False
        self._places = places
        self.tensors = {full: _info(shape_of, full, shard.tensors[name]) for full, (shard, name) in places.items()}

    def row_order(self, name: str, count: int) -> NDArray[np.int64] | None:  # noqa: ARG002 - for permuting converters
        """Return which of a tensor's `count` rows in the file are its rows here, in order; None: all as they are."""
        return None

    def file_of(self, name: str) -> str:
        shard, own = self._places[name]
        return f"{shard.path.name} ({own})"

    def file_shape(self, name: str) -> Shape:
        """Return the shape of a tensor in the file."""
        shard, own = self._places[name]
        return shard.tensors[own].shape

    def read(self, name: str) -> NDArray[Any]:
        return numbers_of(*self._blocks(name)).reshape(self.tensors[name].shape)

    def block_format(self, name: str) -> str | None:
        shard, own = self._places[name]
        return GGUF_TYPES[shard.tensors[own].kind].format

    def blocks(self, name: str) -> FileWeight | GgufWeight:
        tensor, blocks = self._blocks(name)
        return weight_of(tensor.kind, blocks)

    def forget(self, name: str) -> None:
        shard, own = self._places[name]
        shard.forget(own)

    def _blocks(self, name: str) -> tuple[GgufTensor, NDArray[np.uint8]]:
        """Return a tensor and its blocks [rows, blocks, bytes], rows in the order of the Hugging Face layout."""
        shard, own = self._places[name]
        tensor, blocks = shard.tensors[own], shard.blocks(own)
        order = self.row_order(name, math.prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0])
        if order is not None:
            blocks = blocks[order] if len(tensor.shape) > 1 else blocks[:, order]
        return tensor, blocks


def numbers_of(tensor: GgufTensor, blocks: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the numbers of a tensor in its shape in the file: floats as they are, others as float32."""
    if tensor.kind in FORMAT_OF:
        floats: NDArray[Any] = np.ascontiguousarray(blocks).view(FORMATS[FORMAT_OF[tensor.kind]])
        return floats.reshape(tensor.shape)
    matrix = by_rows((len(blocks), tensor.shape[-1]), lambda rows: dequantize(tensor.kind, blocks[rows]))
    return matrix.reshape(tensor.shape)


def unpermuted(name: str, count: int, config: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return which rows of a permuted tensor of q or k are those of the Hugging Face layout, in its order.

    Args:
        name, count: the tensor's name in that layout, and its rows.
        config: of the model.
    """
    heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
    return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _info(shape_of: Callable[[str, Shape], Shape], name: str, tensor: GgufTensor) -> TensorInfo:
    """Return a tensor's place; other types than floats are read as float32."""
    kind = tensor.kind if tensor.kind in FORMAT_OF else "F32"
    return TensorInfo(kind, shape_of(name, tensor.shape), tensor.begin, tensor.end)
