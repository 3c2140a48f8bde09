"""`Targets`: which matrices of a network the modules of an adapter change, and which rows of a module each has.

Names are those of a checkpoint in the Hugging Face layout. A network splits fused matrices and orders rows for its
rotations (`models/tensor_views.py`); an adapter's matrix B is cut and ordered alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.models.tensor_views import View
from ferrum.sources.checkpoint import TEXT_PREFIXES
from ferrum.sources.read_model import ReadModel
from ferrum.sources.viewed_tensors import index_of, needed_shape

_MODEL: Final = "model."
_WEIGHT: Final = ".weight"


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix of the network that holds a module's rows.

    Attributes:
        name: of the matrix.
        view: how it takes them; None: it is the module's matrix.
    """

    name: str
    view: View | None = None

    def cut(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the matrix's rows of an array with the module's rows."""
        if self.view is None or self.view.rows is None:
            return rows
        return np.ascontiguousarray(rows[index_of(self.view.rows)])


class Targets:
    """The modules of a model.

    Args:
        model: as its files describe it.

    Attributes:
        shapes: [outputs, inputs] of the modules' matrices, by the names of their tensors.
    """

    def __init__(self, model: ReadModel) -> None:
        asks = model.asks
        self._tied = model.spec.tied_head
        self._targets: dict[str, list[Target]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in asks.shapes.items():
            if (view := asks.views.get(name)) is None:
                self._add(name, Target(name), shape)
            elif len(view.sources) == 1:
                self._add(view.sources[0], Target(name, view), needed_shape(view, shape))
        if self._tied:
            self._add(HEAD, Target(HEAD), asks.shapes[EMBEDDING])

    @property
    def tied_head(self) -> bool:
        """Whether the head is the embedding."""
        return self._tied

    def _add(self, source: str, target: Target, shape: tuple[int, ...]) -> None:
        self._targets.setdefault(source, []).append(target)
        self.shapes[source] = tuple(map(max, shape, self.shapes.get(source, shape)))

    def tensor(self, name: str) -> str | None:
        """Return a tensor's name as the model has it, or None if it has no such tensor.

        Args:
            name: of a model with or without a head, or of one with a text model inside.
        """
        text = next((ours + name.removeprefix(held) for held, ours in TEXT_PREFIXES if name.startswith(held)), name)
        return next((each for each in (text, _MODEL + text) if each in self._targets), None)

    def of(self, tensor: str) -> list[Target]:
        """Return the matrices (or vectors) that hold a tensor of the model."""
        return self._targets[tensor]
