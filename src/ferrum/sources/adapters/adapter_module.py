"""`AdapterModule`: the tensors that an adapter has for one module, checked, and the changes that they are.

It knows no file format: PEFT directories and GGUF files give the same parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.adapters import Change, LowRank, Replacement
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.sources.adapters.adapter_targets import Target, Targets

Shape = tuple[int, ...]


class Part(Enum):
    """What a tensor of an adapter is for its module."""

    A = "A"
    B = "B"
    B_BIAS = "bias of B"
    EMBEDDING_A = "A of an embedding, [vocabulary, r]"
    EMBEDDING_B = "B of an embedding"
    MAGNITUDE = "magnitude"
    WEIGHT = "weight"
    BIAS = "bias"
    BASE = "copy of the base's weight"
    ROWS = "rows"


PAIRS: Final = {
    Part.A: Part.B,
    Part.B: Part.A,
    Part.B_BIAS: Part.B,
    Part.EMBEDDING_A: Part.EMBEDDING_B,
    Part.EMBEDDING_B: Part.EMBEDDING_A,
    Part.MAGNITUDE: Part.A,
}
"""Parts that need another one."""


@dataclass(frozen=True, slots=True)
class AdapterTensor:
    """A tensor of an adapter.

    Attributes:
        where: its file and its name, for messages.
        values: its numbers.
    """

    where: str
    values: NDArray[Any]

    def wrong(self, problem: str) -> CheckpointError:
        """Return an error that names the tensor."""
        return CheckpointError(f"{self.where}: {problem}")

    def refused(self, reason: str) -> Unsupported:
        """Return the error of a tensor that cannot be applied."""
        return Unsupported(self.where, reason)

    def expect(self, *shape: int) -> NDArray[Any]:
        """Return the numbers. Raises CheckpointError for another shape, and for numbers that are not finite."""
        if self.values.shape != shape:
            raise self.wrong(f"expected shape {list(shape)}, found {list(self.values.shape)}")
        if not np.isfinite(self.values).all():
            raise self.wrong("has numbers that are not finite")
        return self.values


@dataclass(slots=True)
class AdapterModule:
    """What an adapter has for one module.

    Attributes:
        name: of the module's matrix in the model.
        scale: of its low-rank product; None without one.
        rank: as the configuration says it; None: as the tensors say it.
        rows: that `Part.ROWS` replaces.
        parts: the tensors.
    """

    name: str
    scale: float | None = None
    rank: int | None = None
    rows: tuple[int, ...] = ()
    parts: dict[Part, AdapterTensor] = field(default_factory=dict)

    def add(self, part: Part, tensor: AdapterTensor) -> None:
        """Add a tensor. Raises CheckpointError for a second one of a part."""
        if part in self.parts:
            raise tensor.wrong(f"is the same part of {self.name} as {self.parts[part].where}")
        self.parts[part] = tensor

    def changes(self, targets: Targets) -> Iterator[tuple[str, Change]]:
        """Yield the changes of the network's matrices that hold the module.

        Raises:
            CheckpointError: a tensor has no partner, a wrong shape, or numbers that are not finite.
            Unsupported: a tensor cannot be applied.
        """
        first, shape = next(iter(self.parts.values())), targets.shapes[self.name]
        if len(shape) != 2:
            raise first.refused("adapters of norms are not implemented")
        for part, tensor in self.parts.items():
            partner = PAIRS.get(part)
            if part is Part.MAGNITUDE and Part.EMBEDDING_A in self.parts:
                raise tensor.refused("magnitudes of embeddings (DoRA) are not implemented")
            if partner is not None and partner not in self.parts:
                raise tensor.wrong(f"its partner ({partner.value}) is missing")
        whole = Change(
            low_rank=self._low_rank(*shape),
            replaced=self._replacement(*shape),
            magnitude=self._vector(Part.MAGNITUDE, shape[0]),
            bias=self._bias(targets, shape[0]),
        )
        for target in targets.of(self.name):
            self._check_target(target)
            yield target.name, _cut(whole, target)

    def _check_target(self, target: Target) -> None:
        view = target.view
        if view is not None and (view.width is not None or view.columns is not None or view.transposed):
            raise next(iter(self.parts.values())).refused(
                f"{target.name} is not stored by rows of this tensor's module"
            )

    def _low_rank(self, outputs: int, inputs: int) -> LowRank | None:
        embeds = Part.EMBEDDING_A in self.parts
        first = self.parts.get(Part.EMBEDDING_A if embeds else Part.A)
        if first is None:
            return None
        second = self.parts[Part.EMBEDDING_B if embeds else Part.B]
        if embeds != (self.name == EMBEDDING):
            raise first.wrong(f"is no tensor for {'an embedding' if not embeds else 'a linear layer'}")
        shape = first.values.shape
        rank = self.rank or (shape[-1] if embeds else shape[0]) if len(shape) == 2 else 1
        if embeds:  # [vocabulary, r], [hidden, r]
            a, b = first.expect(outputs, rank), second.expect(inputs, rank)
        else:
            a, b = first.expect(rank, inputs), second.expect(outputs, rank)
        assert self.scale is not None, "modules with low-rank products have a scale"
        return LowRank(a, b, self.scale, self._vector(Part.B_BIAS, outputs))

    def _replacement(self, outputs: int, inputs: int) -> Replacement | None:
        rows, weight = self.parts.get(Part.ROWS), self.parts.get(Part.WEIGHT)
        if rows is not None and weight is not None:
            raise rows.wrong(f"replaces rows of {weight.where}")
        if rows is not None:
            if max(self.rows, default=0) >= outputs:
                raise rows.wrong(f"has a row {max(self.rows)} of a vocabulary of {outputs}")
            order = np.argsort(np.array(self.rows, np.int32))
            values = rows.expect(len(self.rows), inputs)[order]
            return Replacement(np.ascontiguousarray(values), np.array(self.rows, np.int32)[order])
        return None if weight is None else Replacement(weight.expect(outputs, inputs))

    def _bias(self, targets: Targets, outputs: int) -> NDArray[np.float32] | None:
        tensor, name = self.parts.get(Part.BIAS), self.name.removesuffix("weight") + "bias"
        if tensor is not None and targets.shapes.get(name) != (outputs,):
            raise tensor.wrong(f"the model has no {name}")
        return self._vector(Part.BIAS, outputs)

    def _vector(self, part: Part, size: int) -> NDArray[np.float32] | None:
        tensor = self.parts.get(part)
        return None if tensor is None else tensor.expect(size).astype(np.float32)


def _cut(change: Change, target: Target) -> Change:
    """Return what a module's change is for one matrix that holds rows of it."""
    if target.view is None or target.view.rows is None:
        return change
    low_rank, new = change.low_rank, change.replaced
    if low_rank is not None:
        bias = None if low_rank.bias is None else target.cut(low_rank.bias)
        low_rank = LowRank(low_rank.a, target.cut(low_rank.b), low_rank.scale, bias)
    return replace(
        change,
        low_rank=low_rank,
        replaced=None if new is None else Replacement(target.cut(new.values)),
        magnitude=None if change.magnitude is None else target.cut(change.magnitude),
        bias=None if change.bias is None else target.cut(change.bias),
    )


def merged(modules: Mapping[str, AdapterModule], targets: Targets) -> dict[str, Change]:
    """Return the changes of all modules by the names of the network's matrices. Raises as `AdapterModule.changes`."""
    changes: dict[str, Change] = {}
    for module in modules.values():
        changes.update(module.changes(targets))
    return changes


def tied(changes: dict[str, Change], part: Change | None) -> None:
    """Let a tied head follow a change of the embedding's rows."""
    if part is not None:
        changes[HEAD] = replace(changes.get(HEAD, Change()), replaced=part.replaced)
