"""Adapters that are merged into a model: opened, checked, and put into its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.config import ModelConfig
from ferrum.core.errors import ConfigError, RequestError, Unsupported
from ferrum.core.lora_option import AdapterToMerge
from ferrum.kernels.adapters import Change, LowRank, Replacement
from ferrum.kernels.operations import F32, Int32
from ferrum.models.decoder import inventory
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.dense import FORMATS, DenseWeight
from ferrum.runtime.adapters.adapter_factors import F64, column_norms, row_norms, widened
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.open_adapter import open_adapter
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.parameters import model_spec
from ferrum.sources.read_model import read_spec
from ferrum.sources.tensor_file import TensorInfo
from ferrum.sources.viewed_tensors import with_views


@dataclass(frozen=True, slots=True)
class ScaledAdapter:
    """An adapter to merge.

    Attributes:
        file: what its files hold.
        scale: factor of its low-rank products.
    """

    file: AdapterFile
    scale: float = 1.0


def open_adapters(name: str, store: TensorStore, wanted: Sequence[AdapterToMerge]) -> tuple[ScaledAdapter, ...]:
    """Return adapters of a model, which can be merged into it together.

    Args:
        name: of the model.
        store: its tensors.
        wanted: in the order in which they are added.

    Raises:
        ModelNotFound: there is no such adapter; `param` is `lora`.
        ConfigError: an adapter cannot be scaled, or must be the only one.
        Unsupported: an adapter cannot be merged.
        CheckpointError: a file is damaged, or does not fit the model.
    """
    if not wanted:
        return ()
    model, found = read_spec(ModelConfig(model=name), store), list[ScaledAdapter]()
    for each in wanted:
        try:
            found.append(ScaledAdapter(open_adapter(each.path, model), each.scale))
        except RequestError as error:
            raise error.about("lora") from None
    for adapter in found:
        _check(adapter, alone=len(found) == 1)
    with_adapters(store, found)
    return tuple(found)


def _check(adapter: ScaledAdapter, *, alone: bool) -> None:
    """Refuse what is refused when adapters are served, and an aLoRA. Raises as `open_adapters`."""
    file, scale = adapter.file, adapter.scale
    if file.invocation:
        reason = f"it is an aLoRA, which does not change the tokens before its invocation; {SERVE}"
        raise Unsupported(f"merging the adapter {file.path}", reason)
    if all(each.scales for each in file.changes.values()):
        return
    replaces = f"{file.path!r} replaces weights or scales outputs (DoRA)"
    if scale != 1:
        raise ConfigError(f"must have the scale 1, not {scale:g}: {replaces}", param="lora")
    if not alone:
        raise ConfigError(f"must name a single adapter: {replaces}", param="lora")


def with_adapters(store: TensorStore, adapters: Sequence[ScaledAdapter]) -> TensorStore:
    """Return a model's tensors with adapters merged into them; without adapters the same ones.

    Raises:
        CheckpointError, Unsupported: the model cannot be read, or lacks what an adapter changes.
    """
    if not adapters:
        return store
    changes = dict[str, list[ScaledChange]]()
    for each in adapters:
        for name, change in each.file.changes.items():
            changes.setdefault(name, []).append(ScaledChange(change, each.scale, each.file.path))
    spec = model_spec(store)
    viewed = with_views(store, inventory(spec))
    return MergedTensors(viewed, changes, tied=spec.tied_head, norm_offset=spec.norms.offset)


# ---- `MergedTensors`: a model's tensors with adapters merged into them, which are computed when they are read ----

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

    def order(self, name: str) -> Int32 | None:
        return self._store.order(self._base(name))

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


# ---- The numbers of a matrix, a bias and a norm with adapters merged into them: W + s B A ----
#
# Models have the results of adapters that are served (`kernels/adapters.py`). Sums are float64 in a fixed order, and
# each number is rounded once, so that every machine writes the same bits.

_PIECE: Final = 1 << 16
"""Numbers that are computed at a time: they stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class ScaledChange:
    """A change of a matrix.

    Attributes:
        change: as files hold it, with magnitude and bias.
        scale: factor of its low-rank product, in addition to its own.
        path: of the adapter, for messages.
    """

    change: Change
    scale: float
    path: str

    @property
    def of_matrix(self) -> bool:
        """Whether it changes the matrix itself."""
        parts = self.change.low_rank, self.change.replaced, self.change.magnitude
        return any(part is not None for part in parts)

    @property
    def of_bias(self) -> bool:
        """Whether it changes the bias."""
        low_rank = self.change.low_rank
        return self.change.bias is not None or (low_rank is not None and low_rank.bias is not None)


Changes = Mapping[str, Sequence[ScaledChange]]
"""Changes of matrices by name, in the order in which they are added."""


def merged_pieces(name: str, base: NDArray[Any], changes: Sequence[ScaledChange]) -> Iterator[tuple[slice, F32]]:
    """Yield all rows of a changed matrix [N, K] in ascending order, a piece at a time.

    Args:
        name: of the matrix.
        base: its numbers without changes.
        changes: in the order in which they are added.
    """
    outputs, inputs = base.shape
    products = [
        _Product(name, each.change.low_rank, each.scale) for each in changes if each.change.low_rank is not None
    ]
    factors = [_factors(name, each.change, base) for each in changes if each.change.magnitude is not None]
    size = products[0].rows if products else outputs  # of an expert or a head
    step = max(1, _PIECE // inputs)
    for first in range(0, outputs, size):
        for product in products:
            product.begin(first // size)
        for begin in range(0, size, step):
            rows = slice(first + begin, first + min(begin + step, size))
            w = base[rows].astype(np.float64)
            for each in changes:
                _replace(w, rows, each.change.replaced)
            for product in products:
                product.add(w, begin)
            for factor in factors:
                w *= factor if name == EMBEDDING else factor[rows, None]
            with np.errstate(over="ignore"):  # quantisers refuse infinities
                merged = w.astype(np.float32)
            yield rows, merged


def merged_norm(base: NDArray[Any], changes: Sequence[ScaledChange], offset: float) -> F32:
    """Return the changed weight of a norm [N], without the `offset` that the network adds to it."""
    for each in changes:
        if each.change.replaced is not None:
            base = each.change.replaced.values[:, 0] - np.float32(offset)
    weight: F32 = base.astype(np.float32)
    return weight


def merged_bias(
    matrix: str, base: NDArray[Any], changes: Sequence[ScaledChange], read: Callable[[], NDArray[Any]]
) -> F32:
    """Return a changed bias [N].

    Args:
        matrix: whose bias it is.
        base: the bias without changes.
        changes: in the order in which they are added.
        read: returns the matrix without changes.
    """
    bias = widened(base)
    for each in changes:
        change, low_rank = each.change, each.change.low_rank
        if change.bias is not None:
            bias = widened(change.bias)
        if low_rank is None or low_rank.bias is None:
            continue
        added = widened(low_rank.bias) * (low_rank.scale * each.scale)
        bias = bias + (added if change.magnitude is None else added * _factors(matrix, change, read()))
    merged: F32 = bias.astype(np.float32)
    return merged


def _factors(name: str, change: Change, base: NDArray[Any]) -> F64:
    """Return what a change with a magnitude multiplies the rows of a matrix by [N], or the columns of an embedding."""
    assert change.magnitude is not None
    norms = column_norms if name == EMBEDDING else row_norms
    return change.magnitude / norms(DenseWeight(base), change.low_rank, lambda: None)


def _replace(w: F64, rows: slice, new: Replacement | None) -> None:
    """Replace those rows of a piece that a change replaces."""
    if new is not None and new.rows is None:
        w[:] = new.values[rows]
    elif new is not None and new.rows is not None:
        first, last = np.searchsorted(new.rows, (rows.start, rows.stop))
        w[new.rows[first:last] - rows.start] = new.values[first:last]


class _Product:
    """A low-rank product of a matrix, of which one expert's or head's part is widened at a time.

    Attributes:
        rows: of each part.
    """

    def __init__(self, name: str, low_rank: LowRank, scale: float) -> None:
        embeds = name == EMBEDDING
        self._b, self._a = (low_rank.a, low_rank.b.T) if embeds else (low_rank.b, low_rank.a)
        self._scale = low_rank.scale * scale
        self.rows = self._b.shape[-2]

    def begin(self, part: int) -> None:
        """Add to rows of this part from now on."""
        b, a = (each[part] if each.ndim > 2 else each for each in (self._b, self._a))
        self._part = widened(b), widened(a)

    def add(self, w: F64, begin: int) -> None:
        """Add to the rows of the part from `begin` on."""
        b, a = self._part
        b = b[begin : begin + len(w)] * self._scale
        product = np.empty_like(w)
        for j in range(len(a)):  # in this order on every machine
            np.multiply(b[:, j : j + 1], a[j], out=product)
            w += product
