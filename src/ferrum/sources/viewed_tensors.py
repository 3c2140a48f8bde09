"""`ViewedTensors`: a store whose parameters may be views of its tensors (`models/tensor_names.py`).

A model asks for one matrix of all experts where a file has one for each, or for a gate and an up projection where a
file has both in one tensor. Here is how they are found, checked and read. Families say which views they need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError
from ferrum.kernels.operations import Int32
from ferrum.models.decoder import Inventory
from ferrum.models.tensor_names import Rows, Runs, View
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.gguf_blocks import stacked
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.tensor_file import TensorInfo

Shape = tuple[int, ...]


def with_views(store: TensorStore, asks: Inventory) -> TensorStore:
    """Return a store that has what a model asks for; a `final` one has every parameter by itself.

    Raises:
        CheckpointError: a tensor of a view is missing or has another shape.
    """
    return ViewedTensors(store, asks.views, asks.shapes, asks.wholes) if asks.views and not store.final else store


class ViewedTensors(TensorStore):
    """A `TensorStore` with views. A parameter that the store has under its own name is no view.

    Args:
        store: has the tensors.
        views: where parameters are, by name.
        shapes: of all parameters, by name.
        wholes: the shapes of parameters of which only a part is taken (`View.part`).

    Attributes: see `TensorStore`. Tensors that only views read are not listed.

    Raises:
        CheckpointError: as `with_views`.
    """

    def __init__(
        self,
        store: TensorStore,
        views: Mapping[str, View],
        shapes: Mapping[str, Shape],
        wholes: Mapping[str, Shape] | None = None,
    ) -> None:
        self._store = store
        self.directory, self.config, self.headless = store.directory, store.config, store.headless
        found = {name: _in_store(view, store) for name, view in views.items()}
        self._views = {name: view for name, view in found.items() if name not in store.tensors or name in view.sources}
        own = {name: view.part for name, view in found.items() if name not in self._views and view.part is not None}
        self._views |= {name: View((name,), part=part) for name, part in own.items()}
        self._wholes = {**shapes, **(wholes or {})}
        used = {source for view in self._views.values() for source in view.sources}
        self.tensors = {name: info for name, info in store.tensors.items() if name not in used or name in shapes}
        wanted: dict[tuple[str, ...], Shape] = {}  # of all that several views share
        for name, view in self._views.items():
            needed = needed_shape(view, self._wholes[name])
            wanted[view.sources] = tuple(map(max, needed, wanted.get(view.sources, needed)))
        for name, view in self._views.items():
            self._check(name, view, wanted[view.sources])
            self.tensors[name] = self._info(view, shapes[name], wanted[view.sources])

    def file_of(self, name: str) -> str:
        view = self._views.get(name)
        return self._store.file_of(name if view is None else view.sources[0])

    def read(self, name: str) -> NDArray[Any]:
        view = self._views.get(name)
        if view is None:
            return self._store.read(name)
        shape = self.tensors[name].shape
        own = self._of_each(view, len(shape))
        whole = self._stacked(view, len(shape), own or slice(None))
        taken = whole if own else _selected(view, whole)
        if view.transposed and view.part is not None:
            taken = taken.reshape(self._wholes[name])[index_of(view.part)]
        numbers = np.ascontiguousarray(taken).reshape(shape)
        if not np.may_share_memory(numbers, whole):
            self._forget(view)
        return numbers

    def read_whole(self, name: str) -> NDArray[Any]:
        view = self._views.get(name)
        if view is None:
            return self._store.read(name)
        whole = _selected(replace(view, part=None), self._stacked(view, len(self._wholes[name])))
        return np.ascontiguousarray(whole).reshape(self._wholes[name])

    def block_format(self, name: str) -> str | None:
        view = self._views.get(name)
        if view is None:
            return self._store.block_format(name)
        if view.columns is not None or view.transposed or len(self.tensors[name].shape) == 1:
            return None
        format = self._store.block_format(view.sources[0])
        if (
            view.width is not None
            and format is not None
            and view.width % (BLOCK_FORMATS[format].group * BLOCK_FORMATS[format].groups)
        ):
            return None
        alike = format is not None and all(self._store.block_format(each) == format for each in view.sources[1:])
        return format if alike and self._keeps_orders(view) else None

    def order(self, name: str) -> Int32 | None:
        view = self._views.get(name)
        return self._store.order(name) if view is None else self._orders(view)

    def _orders(self, view: View) -> Int32 | None:
        """Return the orders of inputs of a view's tensors, one for each or one for all; None if none has one."""
        found = [self._store.order(each) for each in view.sources]
        if all(each is None for each in found):
            return None
        plain = np.arange(self._store.tensors[view.sources[0]].shape[-1], dtype=np.int32)[None]
        orders = np.concatenate([plain if each is None else each for each in found])
        return orders[:1] if (orders == orders[0]).all() else orders

    def _keeps_orders(self, view: View) -> bool:
        """Whether the rows of a view have one order of inputs, or each run of equal runs has its tensor's."""
        orders = self._orders(view)
        if orders is None or (len(orders) == 1 and view.width is None):
            return True
        if view.width is not None:
            return False
        sizes = [self._store.tensors[each].shape[0] for each in view.sources]
        sources = np.repeat(np.arange(len(sizes)), sizes)
        rows = _rows(view, len(sources))
        taken = sources if rows is None else sources[rows]
        size, rest = divmod(len(taken), len(sizes))
        return rest == 0 and np.array_equal(taken, np.repeat(np.arange(len(sizes)), size))

    def blocks(self, name: str) -> BlockWeight:
        view = self._views.get(name)
        if view is None:
            return self._store.blocks(name)
        own = self._of_each(view, 2)
        if own is not None:
            return stacked([self._store.blocks(each).select(own) for each in view.sources])
        whole = stacked([self._store.blocks(each) for each in view.sources])
        if view.width is not None:
            whole = whole.folded(view.width)
        rows = _rows(view, whole.shape[0])
        return whole if rows is None else whole.select(rows)

    def forget(self, name: str) -> None:
        view = self._views.get(name)
        if view is None:
            self._store.forget(name)
        else:
            self._forget(view)

    def _forget(self, view: View) -> None:
        for each in view.sources:
            self._store.forget(each)

    def _of_each(self, view: View, dimensions: int) -> slice | None:
        """Return the rows that a view takes of each of its tensors, if it takes the same adjacent ones of all.

        So a rank's part of experts with a tensor for each never needs the memory of all.
        """
        if view.columns is not None or view.transposed or view.width is not None or None not in (view.rows, view.part):
            return None
        runs = view.rows or view.part
        if not isinstance(runs, Runs) or runs.step != 1 or runs.pairs or len(view.sources) == 1:
            return None
        shapes = [_flat(self._store.tensors[each].shape, dimensions) for each in view.sources]
        if runs.parts != len(shapes) or any(shape[0] != runs.whole for shape in shapes):
            return None
        return slice(runs.first, runs.first + runs.count)

    def _stacked(self, view: View, dimensions: int, rows: slice = slice(None)) -> NDArray[Any]:
        """Return the tensors of a view, or some rows of each, one after another."""
        parts = [self._store.read(each) for each in view.sources]
        parts = [each.reshape(_flat(each.shape, dimensions, view.width))[rows] for each in parts]
        if len(parts) == 1:
            return parts[0]
        dtypes = {each.dtype for each in parts}
        whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtypes.pop() if len(dtypes) == 1 else np.float32)
        at = 0
        for part, source in zip(parts, view.sources, strict=True):
            whole[at : at + len(part)] = part
            at += len(part)
            self._store.forget(source)
        return whole

    def _info(self, view: View, shape: Shape, whole: Shape) -> TensorInfo:
        """Return the place of a view: its part of its tensors' bytes."""
        infos = [self._store.tensors[each] for each in view.sources]
        dtypes = {info.dtype: None for info in infos}
        unread = next((info.dtype for info in infos if info.format is None), "F32")
        nbytes = sum(info.nbytes for info in infos) * math.prod(shape) // math.prod(whole)
        return TensorInfo(infos[0].dtype if len(dtypes) == 1 else unread, shape, 0, nbytes)

    def _check(self, name: str, view: View, wanted: Shape) -> None:
        """Raise CheckpointError unless the tensors of a view exist and have this shape one after another."""
        missing = next((each for each in view.sources if each not in self._store.tensors), None)
        if missing is not None:
            raise CheckpointError(f"{self.directory}: tensor {missing!r} is missing; {name!r} needs it")
        width = None if view.transposed else view.width  # rows that are transposed are a tensor's own
        shapes = [_flat(self._store.tensors[each].shape, len(wanted), width) for each in view.sources]
        if all(shape[1:] == wanted[1:] for shape in shapes) and sum(shape[0] for shape in shapes) == wanted[0]:
            return
        expected = [wanted[0] // len(shapes), *wanted[1:]]
        pairs = zip(view.sources, shapes, strict=True)
        source = next((each for each, shape in pairs if list(shape) != expected), view.sources[0])
        raise CheckpointError(
            f"{self.directory}: tensor {source!r} in {self._store.file_of(source)}: expected shape {expected}, "
            f"found {list(self._store.tensors[source].shape)}; {name!r} needs it"
        )


def _in_store(view: View, store: TensorStore) -> View:
    """Return the first of a view and its substitutes whose tensors a store has, or else the view."""
    each: View | None = view
    while each is not None:
        if all(source in store.tensors for source in each.sources):
            return each
        each = each.otherwise
    return view


def _flat(shape: Shape, dimensions: int, width: int | None = None) -> Shape:
    """Return a tensor's shape as a matrix, its leading axes flattened, or as a vector."""
    if width is not None and math.prod(shape) % width == 0:
        return math.prod(shape) // width, width
    return (math.prod(shape),) if dimensions == 1 else (math.prod(shape[:-1]), *shape[-1:])


def needed_shape(view: View, shape: Shape) -> Shape:
    """Return the shape that the tensors of a view must have at least, one after another."""
    if len(shape) == 1 and view.width is None:
        return (_extent(view.rows, shape[0]),)
    rows, columns = shape if view.width is None or len(shape) == 2 else (view.width, shape[0] // view.width)
    if view.transposed:
        rows, columns = view.transposed * columns, rows // view.transposed
    return _extent(view.rows, rows), _extent(view.columns, columns)


def _extent(chosen: Rows | None, count: int) -> int:
    """Return how many rows or columns there must be if `count` of them are chosen."""
    if chosen is None:
        return count
    if isinstance(chosen, tuple):
        return max(_extent(each, count) for each in chosen)
    if isinstance(chosen, Runs):
        return chosen.parts * chosen.whole
    begin, step = chosen.start or 0, chosen.step or 1
    return int(begin - begin % step + count * step if chosen.stop is None else chosen.stop)


def _selected(view: View, whole: NDArray[Any]) -> NDArray[Any]:
    """Return what a view takes of its tensors; if it is transposed, before its part is taken."""
    rows = _rows(replace(view, part=None) if view.transposed else view, len(whole))
    if rows is not None:
        whole = whole[rows]
    if view.columns is not None:
        whole = whole[:, index_of(view.columns)]
    if view.transposed:
        parts = whole.reshape(view.transposed, -1, whole.shape[1])
        whole = parts.swapaxes(1, 2).reshape(-1, parts.shape[1])
    return whole


def _rows(view: View, count: int) -> slice | NDArray[np.int64] | None:
    """Return the rows that a view takes of the `count` rows of its tensors, so that no others are read; None: all."""
    rows = None if view.rows is None else index_of(view.rows)
    if view.part is None:
        return rows
    part = index_of(view.part)
    if rows is None:
        return part
    if isinstance(rows, slice) and isinstance(part, slice) and rows.step is None:
        begin = rows.start or 0
        return slice(begin + part.start, begin + part.stop)
    taken: NDArray[np.int64] = (np.arange(count)[rows] if isinstance(rows, slice) else rows)[part]
    return taken


def index_of(rows: Rows) -> slice | NDArray[np.int64]:
    """Return the numbers of rows."""
    if isinstance(rows, slice):
        return rows
    if isinstance(rows, tuple):
        return np.concatenate([np.asarray(index_of(each)) for each in rows])
    taken = rows.first + rows.step * np.arange(rows.count)
    pairs = taken[: 2 * rows.pairs].reshape(-1, 2)
    taken = np.concatenate((pairs[:, 0], pairs[:, 1], taken[2 * rows.pairs :]))
    return (np.arange(rows.parts)[:, None] * rows.whole + taken).reshape(-1)
