"""`Targets`: which matrices of a network the modules of an adapter change, and which rows of a module each has.

Names are those of a checkpoint in the Hugging Face layout. A network splits fused matrices and orders rows for its
rotations (`models/tensor_names.py`); an adapter's matrix B is cut and ordered alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.models.tensor_names import EMBEDDING, HEAD, Runs, View
from ferrum.sources.checkpoint import TEXT_PREFIXES
from ferrum.sources.read_model import ReadModel
from ferrum.sources.viewed_tensors import index_of, needed_shape

_MODEL: Final = "model."
_HEADS: Final = (".k_b_proj.weight", ".v_b_proj.weight")
"""Matrices of latent attention with rows of each head."""

EXPERTS: Final = ".experts."


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix of the network that holds a module's rows.

    Attributes:
        name: of the matrix.
        view: how it takes them; None: it is the module's matrix.
        groups: number of heads or experts whose rows it holds one after another; 1 for other matrices.
        expert: whose rows of it the module holds; None: the module is no expert.
    """

    name: str
    view: View | None = None
    groups: int = 1
    expert: int | None = None

    @property
    def transposed(self) -> bool:
        """Whether it holds the module's rows of each group as columns."""
        return self.view is not None and bool(self.view.transposed)

    @property
    def is_stack(self) -> bool:
        """Whether the module holds the rows of all groups, as the matrix does."""
        return self.groups > 1 and self.view is None and self.expert is None

    @property
    def is_selection(self) -> bool:
        """Whether it holds rows of the module, perhaps with columns in another order, or each group's transposed."""
        view = self.view
        if view is None:
            return True
        whole = view.columns is None or isinstance(view.columns, tuple)
        return view.width is None and whole and view.transposed in (0, self.groups)

    def cut(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the matrix's rows of an array with the module's rows."""
        if self.view is None or self.view.rows is None:
            return rows
        return np.ascontiguousarray(rows[index_of(self.view.rows)])

    def cut_columns(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the matrix's columns of an array with the module's columns."""
        if self.view is None or not isinstance(self.view.columns, tuple):
            return rows
        return np.ascontiguousarray(rows[:, index_of(self.view.columns)])


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """The matrices of all experts of a layer.

    Attributes:
        prefix: of their names, which end in `gate_proj.weight`, `up_proj.weight` and `down_proj.weight`.
        count, inputs, inner: number of experts, and numbers of their inputs and of their middle.
        gate_rows, up_rows: of the rows of an expert's gate and up projections in one matrix.
        transposed: a checkpoint holds the matrices transposed.
    """

    prefix: str
    count: int
    inputs: int
    inner: int
    gate_rows: slice
    up_rows: slice
    transposed: bool


class Targets:
    """The modules of a model.

    Args:
        model: as its files describe it.

    Attributes:
        model: the same.
        shapes: [outputs, inputs] of the modules' matrices, by the names of their tensors.
        experts: the matrices of experts by the name of a module that holds all of them.
        norms: what is added to an adapter's weights of norms, by the names of their tensors.
    """

    def __init__(self, model: ReadModel) -> None:
        self.model = model
        self._targets: dict[str, list[Target]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.experts: dict[str, ExpertMatrices] = {}
        self.norms: dict[str, float] = {}
        asks = model.asks
        for name, shape in asks.shapes.items():
            view, groups = asks.views.get(name), _groups(name, asks.views.get(name))
            if view is None:
                self._add(name, Target(name), shape)
            elif len(view.sources) == 1:
                self._add(view.sources[0], Target(name, view, groups), needed_shape(view, shape))
            else:
                part = shape[0] // len(view.sources), *shape[1:]
                for expert, source in enumerate(view.sources):
                    self._add(source, Target(name, None, groups, expert), part)
            if name.endswith(f"{EXPERTS}gate_proj.weight"):
                self._add_experts(name, view)
        for name, shape in asks.shapes.items():  # some files name matrices as the network does
            if name not in self._targets:
                self._add(name, Target(name, None, _groups(name, asks.views[name])), shape)
        for name, offset in asks.norms.items():
            view = asks.views.get(name)
            self.norms[name if view is None else view.sources[0]] = offset
        if self.tied_head:
            self._add(HEAD, Target(HEAD), asks.shapes[EMBEDDING])

    @property
    def tied_head(self) -> bool:
        """Whether the head is the embedding."""
        return self.model.spec.tied_head

    def _add(self, source: str, target: Target, shape: tuple[int, ...]) -> None:
        self._targets.setdefault(source, []).append(target)
        self.shapes[source] = tuple(map(max, shape, self.shapes.get(source, shape)))

    def _add_experts(self, name: str, view: View | None) -> None:
        prefix, (rows, inputs) = name.removesuffix("gate_proj.weight"), self.model.asks.shapes[name]
        count = _groups(name, view)
        inner = rows // count
        step = 1 if view is None else _step(view)
        gate, up = (slice(0, None, 2), slice(1, None, 2)) if step == 2 else (slice(0, inner), slice(inner, None))
        matrices = ExpertMatrices(prefix, count, inputs, inner, gate, up, view is not None and bool(view.transposed))
        self.experts[prefix.removesuffix(".")] = matrices
        if view is not None:
            self.experts.setdefault(view.sources[0].partition(EXPERTS)[0] + EXPERTS.rstrip("."), matrices)

    def tensor(self, name: str) -> str | None:
        """Return a tensor's name as the model has it, or None if it has no such tensor.

        Args:
            name: of a model with or without a head, or of one with a text model inside.
        """
        return next((each for each in _whole(name) if each in self._targets), None)

    def experts_of(self, module: str) -> ExpertMatrices | None:
        """Return the matrices of a module that holds all experts, or None for other modules."""
        return next((self.experts[each] for each in _whole(module) if each in self.experts), None)

    def of(self, tensor: str) -> list[Target]:
        """Return the matrices (or vectors) that hold a tensor of the model."""
        return self._targets[tensor]


def _whole(name: str) -> tuple[str, str]:
    """Return the names that a tensor may have in the whole model."""
    text = next((ours + name.removeprefix(held) for held, ours in TEXT_PREFIXES if name.startswith(held)), name)
    return text, _MODEL + text


def _groups(name: str, view: View | None) -> int:
    """Return the number of experts or heads whose rows a matrix holds one after another, else 1."""
    if view is None:
        return 1
    if EXPERTS not in name and not name.endswith(_HEADS):
        return max(1, view.transposed)
    runs = view.rows.parts if isinstance(view.rows, Runs) else 1
    return max(len(view.sources), view.transposed, runs)


def _step(view: View) -> int:
    """Return the distance of the rows of an expert's gate in a matrix of gate and up."""
    chosen = view.columns or view.rows
    return 1 if chosen is None or isinstance(chosen, tuple) else chosen.step or 1
