"""`MergedTensors`: a model's tensors with adapters merged into them, which are computed when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import Unsupported
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.dense import FORMATS
from ferrum.runtime.adapters.merged_numbers import ScaledChange, merged_bias, merged_norm, merged_pieces
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.tensor_file import TensorInfo

Changes = Mapping[str, Sequence[ScaledChange]]
"""Changes of matrices by name, in the order in which they are added."""

SERVE: Final = "load it with --lora when the model runs"


class MergedTensors(TensorStore):
    """A `TensorStore` of a model's parameters with changes merged. A tensor that none changes stays as it is.

    A head that is the embedding stays it if both change alike. Otherwise it becomes a matrix of the model, and the
    configuration says so. Changed matrices are float32, unless all their rows are replaced by others of their format.

    Args:
        store: has the model's parameters.
        changes: of adapters.
        tied: whether the head is the embedding.
        norm_offset: what the network adds to the weights of norms.

    Attributes: see `TensorStore`.

    Raises:
        Unsupported: the model lacks a parameter that is changed.
    """

    def __init__(self, store: TensorStore, changes: Changes, *, tied: bool, norm_offset: float = 0.0) -> None:
        self._store, self._tied, self._norm_offset = store, tied, norm_offset
        self.directory, self.config, self.headless = store.directory, store.config, store.headless
        self.tensors = dict(store.tensors)
        self._matrices = {name: [each for each in some if each.of_matrix] for name, some in changes.items()}
        self._biased: dict[str, tuple[str, list[ScaledChange]]] = {}
        if tied:
            self._tie()
        for name, matrix in self._matrices.items():
            self._expect(name, changes[name])
            self.tensors[name] = _info(self.tensors[name], matrix)
            bias, biased = f"{name.removesuffix('weight')}bias", [each for each in changes[name] if each.of_bias]
            if biased:
                self._expect(bias, biased)
                self.tensors[bias] = _info(self.tensors[bias], biased)
                self._biased[bias] = name, biased

    def _tie(self) -> None:
        """Make the head a matrix if it is no longer the embedding, else forget its changes."""
        self.tensors.pop(HEAD, None)
        head, embedding = (self._matrices.get(name, []) for name in (HEAD, EMBEDDING))
        if not head and not embedding:
            return
        base = self._store.read(EMBEDDING)
        pairs = zip(merged_pieces(HEAD, base, head), merged_pieces(EMBEDDING, base, embedding), strict=True)
        if all(np.array_equal(one, other) for (_, one), (_, other) in pairs):
            self._matrices.pop(HEAD, None)
        else:
            self.tensors[HEAD] = self._store.tensors[EMBEDDING]
            self.config = {**self.config, "tie_word_embeddings": False}
        self._store.forget(EMBEDDING)

    def _expect(self, name: str, changes: Sequence[ScaledChange]) -> None:
        if name not in self.tensors:
            raise Unsupported(f"merging the adapter {changes[0].path}", f"the model has no {name} to change; {SERVE}")

    @property
    def final(self) -> bool:
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        return self._store.notes

    def in_its_words(self, problem: str) -> str:
        return self._store.in_its_words(problem)

    def file_of(self, name: str) -> str:
        return self._store.file_of(self._base(name))

    def read(self, name: str) -> NDArray[Any]:
        base, info = self._store.read(self._base(name)), self.tensors[name]
        if name in self._biased:
            matrix, changes = self._biased[name]
            return merged_bias(matrix, base, changes, lambda: self._store.read(self._base(matrix)))
        if not self._matrices.get(name):
            return base
        if base.ndim == 1:
            return merged_norm(base, self._matrices[name], self._norm_offset)
        assert info.format is not None, "changed matrices have a float format"
        merged = np.empty(info.shape, FORMATS[info.format])
        for rows, numbers in merged_pieces(name, base, self._matrices[name]):
            merged[rows] = numbers
        self.forget(name)
        return merged

    def block_format(self, name: str) -> str | None:
        return None if self._matrices.get(name) else self._store.block_format(self._base(name))

    def blocks(self, name: str) -> BlockWeight:
        return self._store.blocks(self._base(name))

    def forget(self, name: str) -> None:
        self._store.forget(self._base(name))

    def _base(self, name: str) -> str:
        """Return the name of a tensor in the store."""
        return EMBEDDING if self._tied and name == HEAD else name


def _info(base: TensorInfo, changes: Sequence[ScaledChange]) -> TensorInfo:
    """Return what a changed tensor is."""
    new = [each.change.replaced for each in changes if each.change.low_rank is None]
    kept = base.format is not None and all(
        each is not None and each.values.dtype == FORMATS[base.format] for each in new
    )
    if len(new) == len(changes) and kept:
        return base
    return TensorInfo("F32", base.shape, 0, base.nbytes)
