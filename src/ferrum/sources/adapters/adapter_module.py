"""`AdapterModule`: the tensors that an adapter has for one module, checked, and the changes that they are.

It knows no file format: PEFT directories and GGUF files give the same parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.adapters import Change, LowRank, Replacement
from ferrum.kernels.operations import Weight
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import over_panels
from ferrum.quant.dense import FORMATS
from ferrum.quant.ordered_weight import ordered
from ferrum.sources.adapters.adapter_targets import ExpertMatrices, Target, Targets
from ferrum.sources.checkpoint import Checkpoint, TensorStore


class Part(Enum):
    """What a tensor of an adapter is for its module."""

    A = "A"
    B = "B"
    B_BIAS = "bias of B"
    EMBEDDING_A = "A of an embedding"
    EMBEDDING_B = "B of an embedding"
    MAGNITUDE = "magnitude"
    WEIGHT = "weight"
    BIAS = "bias"
    BASE = "copy of the base's weight"
    ROWS = "rows"


PARTNERS: Final = {
    Part.A: Part.B,
    Part.B: Part.A,
    Part.B_BIAS: Part.B,
    Part.EMBEDDING_A: Part.EMBEDDING_B,
    Part.EMBEDDING_B: Part.EMBEDDING_A,
    Part.MAGNITUDE: Part.A,
}
"""Parts that need another one."""

MAX_RANK: Final = 512

PAIR: Final = (Part.A, Part.B)


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
        scale: of its low-rank product.
        rank: as the configuration says it; None: as the tensors say it.
        rows: that `Part.ROWS` replaces.
        converted: the file has the weight of a norm with what the model adds to it.
        parts: the tensors.
    """

    name: str
    scale: float = 1.0
    rank: int | None = None
    rows: tuple[int, ...] = ()
    converted: bool = False
    parts: dict[Part, AdapterTensor] = field(default_factory=dict)

    @property
    def first(self) -> AdapterTensor:
        """The tensor that messages about the module name."""
        return next(iter(self.parts.values()))

    def add(self, part: Part, tensor: AdapterTensor) -> None:
        """Add a tensor. Raises CheckpointError for a second one of a part."""
        if part in self.parts:
            raise tensor.wrong(f"is the same part of {self.name} as {self.parts[part].where}")
        self.parts[part] = tensor

    def check_partners(self) -> None:
        """Raise CheckpointError if a tensor lacks another one that it needs."""
        for part, tensor in self.parts.items():
            partner = PARTNERS.get(part)
            if partner is not None and partner not in self.parts and Part.EMBEDDING_A not in self.parts:
                raise tensor.wrong(f"its partner ({partner.value}) is missing")
        if (Part.EMBEDDING_A in self.parts) != (Part.EMBEDDING_B in self.parts):
            raise self.first.wrong("a matrix of the embedding's pair is missing")

    def changes(self, targets: Targets) -> Iterator[tuple[Target, Change]]:
        """Yield the changes of the network's matrices that hold the module.

        Raises:
            CheckpointError: a tensor has no partner, a wrong shape, or numbers that are not finite.
            Unsupported: a tensor cannot be applied.
        """
        shape = targets.shapes[self.name]
        self.check_partners()
        for target in targets.of(self.name):
            self._check_target(target)
        whole = self._norm(targets, shape[0]) if len(shape) == 1 else self._whole(targets, shape)
        for target in targets.of(self.name):
            if whole.low_rank is not None or not whole.scales:
                yield target, cut(whole, target)

    def _whole(self, targets: Targets, shape: tuple[int, ...]) -> Change:
        """Return the change of all rows of the module. Raises as `changes`."""
        outputs, inputs = shape
        self._check_base(targets, shape)
        return Change(
            low_rank=self._low_rank(outputs, inputs, targets.of(self.name)[0]),
            replaced=self._replacement(outputs, inputs),
            magnitude=self._vector(Part.MAGNITUDE, inputs if self.name == EMBEDDING else outputs),
            bias=self._bias(targets, outputs),
        )

    def _norm(self, targets: Targets, size: int) -> Change:
        """Return the change of a norm. Raises as `changes`."""
        if self.name not in targets.norms:
            raise self._other_parameter(self.name)
        other = next((each for part, each in self.parts.items() if part not in (Part.WEIGHT, Part.BIAS)), None)
        if other is not None:
            raise other.refused("of a norm only the weight and the bias can be replaced")
        weight, offset = self._vector(Part.WEIGHT, size), 0.0 if self.converted else targets.norms[self.name]
        if weight is not None and offset:
            weight = weight + np.float32(offset)
        new = None if weight is None else Replacement(np.ascontiguousarray(weight[:, None]))
        return Change(replaced=new, bias=self._bias(targets, size))

    def _check_base(self, targets: Targets, shape: tuple[int, ...]) -> None:
        """Refuse a copy of the base's matrix that differs from it, and new weights under a product.

        Raises: as `changes`.
        """
        base, weight, rows = (self.parts.get(part) for part in (Part.BASE, Part.WEIGHT, Part.ROWS))
        if base is not None and self.name not in (EMBEDDING, HEAD):
            raise base.refused("copies of the base's weights are only read of the embedding and the head")
        name = EMBEDDING if targets.tied_head else self.name
        if base is not None and differs(targets.model.store, name, base.expect(*shape)):
            raise base.wrong("differs from the base model's: the adapter was made for another model")
        for new, others in ((weight, (Part.A, Part.MAGNITUDE, Part.ROWS)), (rows, (Part.A, Part.EMBEDDING_A))):
            if new is not None and any(other in self.parts for other in others):
                raise new.refused(f"the adapter changes {self.name} in another way, too")

    def _other_parameter(self, name: str) -> Unsupported:
        return self.first.refused(f"adapters change projections, norms and embeddings, and {name} is none of them")

    def _check_target(self, target: Target) -> None:
        if not target.is_selection:
            raise self._other_parameter(target.name)
        for part, tensor in self.parts.items():
            if part not in PAIR and (target.groups > 1 or target.expert is not None):
                raise tensor.refused(f"of {target.name} only low-rank products can be changed")

    def _low_rank(self, outputs: int, inputs: int, target: Target) -> LowRank | None:
        embeds = Part.EMBEDDING_A in self.parts
        first = self.parts.get(Part.EMBEDDING_A if embeds else Part.A)
        if first is None:
            return None
        if embeds != (self.name == EMBEDDING):
            raise first.wrong(f"is no tensor for {'a linear layer' if embeds else 'an embedding'}")
        other = next((each for part, each in self.parts.items() if embeds and part not in _OF_EMBEDDINGS), None)
        if other is not None:
            raise other.refused("of an embedding only low-rank products and their magnitudes can be changed")
        second = self.parts[Part.EMBEDDING_B if embeds else Part.B]
        rank = self._rank(first)
        if embeds:
            a, b = first.expect(rank, outputs), second.expect(inputs, rank)
            return LowRank(np.ascontiguousarray(a.T), b, self.scale)
        if target.is_stack:
            groups = target.groups
            shared = len(first.values) == 1
            a, b = first.expect(1 if shared else groups, rank, inputs), second.expect(groups, outputs // groups, rank)
            return LowRank(a[0] if shared else a, b, self.scale)
        a, b = first.expect(rank, inputs), second.expect(outputs, rank)
        return LowRank(a, b, self.scale, self._vector(Part.B_BIAS, outputs))

    def _rank(self, a: AdapterTensor) -> int:
        """Return the rank: the first axis of A, after that of experts. Raises CheckpointError."""
        shape = a.values.shape
        rank = self.rank or (shape[-2] if len(shape) > 1 else 0)
        if not 1 <= rank <= MAX_RANK:
            raise a.wrong(f"a matrix of shape {list(shape)} has no rank of 1 to {MAX_RANK}")
        return rank

    def _replacement(self, outputs: int, inputs: int) -> Replacement | None:
        rows, weight = self.parts.get(Part.ROWS), self.parts.get(Part.WEIGHT)
        if rows is not None:
            if max(self.rows, default=0) >= outputs:
                raise rows.wrong(f"trainable_token_indices has {max(self.rows)}; the vocabulary has {outputs} tokens")
            numbers = np.array(self.rows, np.int32)
            order = np.argsort(numbers)
            values = rows.expect(len(self.rows), inputs)[order]
            return Replacement(np.ascontiguousarray(values), numbers[order])
        return None if weight is None else Replacement(weight.expect(outputs, inputs))

    def _bias(self, targets: Targets, outputs: int) -> NDArray[np.float32] | None:
        tensor, name = self.parts.get(Part.BIAS), self.name.removesuffix("weight") + "bias"
        if tensor is not None and targets.shapes.get(name) != (outputs,):
            raise tensor.wrong(f"the model has no {name}")
        return self._vector(Part.BIAS, outputs)

    def _vector(self, part: Part, size: int) -> NDArray[np.float32] | None:
        tensor = self.parts.get(part)
        return None if tensor is None else tensor.expect(size).astype(np.float32)


_OF_EMBEDDINGS: Final = (Part.EMBEDDING_A, Part.EMBEDDING_B, Part.MAGNITUDE, Part.BASE, Part.ROWS)


def cut(change: Change, target: Target) -> Change:
    """Return what a module's change is for one matrix that holds rows of it."""
    if target.view is None or (target.view.rows is None and target.view.columns is None):
        return change
    low_rank, new = change.low_rank, change.replaced
    return replace(
        change,
        low_rank=None if low_rank is None else _cut_product(low_rank, target),
        replaced=None if new is None else Replacement(target.cut_columns(target.cut(new.values))),
        magnitude=None if change.magnitude is None else target.cut(change.magnitude),
        bias=None if change.bias is None else target.cut(change.bias),
    )


def _cut_product(low_rank: LowRank, target: Target) -> LowRank:
    a, b = target.cut_columns(low_rank.a), target.cut(low_rank.b)
    if target.groups > 1:
        b = b.reshape(target.groups, -1, b.shape[1])
    if target.transposed:  # (B A)^T = A^T B^T
        a, b = np.ascontiguousarray(b.swapaxes(1, 2)), np.ascontiguousarray(a.T)
    return LowRank(a, b, low_rank.scale, None if low_rank.bias is None else target.cut(low_rank.bias))


# ---- Copies of the base model's embedding that adapters hold: whether they are copies ----

_ROUNDING: Final = 0.25
"""Largest error of a quantised matrix, as a share of its numbers' root mean square."""

_ROWS: Final = 1024


def differs(store: TensorStore, name: str, copy: NDArray[Any]) -> bool:
    """Return whether a matrix differs from the model's by more than the formats of both explain.

    Args:
        store: has the matrix.
        name: of the matrix in the store.
        copy: of the same shape.
    """
    blocks, info = _blocks(store, name, copy.shape), store.tensors[name]
    rounded = blocks is not None or info.nbytes != math.prod(info.shape) * _item(info.format)
    whole = None if blocks is not None else store.read(name)
    for begin in range(0, len(copy), _ROWS):
        theirs = copy[begin : begin + _ROWS]
        if blocks is None:
            assert whole is not None
            ours = whole[begin : begin + _ROWS]
        else:
            ours = blocks.rows(np.arange(begin, begin + len(theirs), dtype=np.int32))
        if rounded:
            error = np.square(ours.astype(np.float32) - theirs.astype(np.float32)).mean()
            if error > _ROUNDING**2 * np.square(ours.astype(np.float32)).mean():
                return True
        elif not np.array_equal(ours.astype(theirs.dtype), theirs) and not np.array_equal(
            theirs.astype(ours.dtype), ours
        ):
            return True
    return False


def _item(format: str | None) -> int:
    return 0 if format is None else FORMATS[format].itemsize


def _blocks(store: TensorStore, name: str, shape: tuple[int, ...]) -> Weight | None:
    """Return a matrix of quantised blocks, or None for floats."""
    if store.mapped:
        format = store.config["quantization_config"]["blocks"].get(name)
        if format is not None and isinstance(store, Checkpoint):
            return over_panels(store.read_bytes(name), BLOCK_FORMATS[format], (shape[0], shape[1]))
    return ordered(store.blocks(name), store.order(name)) if store.block_format(name) is not None else None


# ---- Modules of all experts: `target_parameters` of PEFT, stacks of GGUF files, and experts that come one by one ----

FIRST_PLAIN: tuple[int, ...] = (0, 19)
"""Version of PEFT from which on A multiplies the inputs, whatever the order of a checkpoint's axes."""


def parameter_of(module: AdapterModule, experts: ExpertMatrices) -> str:
    """Return which parameter a module of all experts changes, from the shapes of its matrices.

    Raises:
        CheckpointError: a matrix is missing, or has the shape of none.
    """
    module.check_partners()
    a, b = module.parts[Part.A], module.parts[Part.B]
    found = frozenset((a.values.shape[-1], b.values.shape[0])) if a.values.ndim == b.values.ndim == 2 else None
    if found == frozenset((experts.inputs, 2 * experts.inner)):
        return "gate_up_proj"
    if found == frozenset((experts.inputs, experts.inner)):
        return "down_proj"
    sizes = f"{experts.inputs} and {experts.inner} or {2 * experts.inner}"
    shapes = f"{list(a.values.shape)} and {list(b.values.shape)}"
    raise a.wrong(f"A and B of {experts.count} experts must have {sizes} numbers in a row and a column, not {shapes}")


def expert_products(
    module: AdapterModule, experts: ExpertMatrices, parameter: str, version: tuple[int, ...]
) -> Iterator[tuple[str, LowRank]]:
    """Yield the products of a module of all experts by the names of the network's matrices.

    A is [experts x r, K], by experts; B is [N, r x experts], by ranks (`ParamWrapper` of PEFT).

    Args:
        parameter: `gate_up_proj` or `down_proj`.
        version: of the PEFT that wrote it.

    Raises:
        CheckpointError: a matrix has a wrong shape, or numbers that are not finite.
        Unsupported: the module has other parts.
    """
    for part, tensor in module.parts.items():
        if part not in (Part.A, Part.B):
            raise tensor.refused("of experts only low-rank products can be changed")
    count, rank = experts.count, module.rank or 1
    inputs, outputs = experts.inputs, 2 * experts.inner
    if parameter == "down_proj":
        inputs, outputs = experts.inner, experts.inputs
    turned = module.parts[Part.A].values.shape[1] != inputs
    if inputs == outputs:
        turned = version < FIRST_PLAIN and not experts.transposed
    wide, high = (outputs, inputs) if turned else (inputs, outputs)
    a = module.parts[Part.A].expect(count * rank, wide).reshape(count, rank, wide)
    b = module.parts[Part.B].expect(high, rank * count).reshape(high, rank, count).transpose(2, 0, 1)
    if turned:  # the files hold the transposed matrix: (B A)^T = A^T B^T
        a, b = np.ascontiguousarray(b.swapaxes(1, 2)), a.swapaxes(1, 2)
    if parameter == "down_proj":
        yield f"{experts.prefix}down_proj.weight", LowRank(a, np.ascontiguousarray(b), module.scale)
        return
    for name, rows in (("gate_proj", experts.gate_rows), ("up_proj", experts.up_rows)):
        yield f"{experts.prefix}{name}.weight", LowRank(a, np.ascontiguousarray(b[:, rows]), module.scale)


def stacked(products: Mapping[int, LowRank], groups: int, where: str) -> LowRank:
    """Return the products of single experts as one; experts without a product have zeros.

    Args:
        products: by expert.
        groups: number of experts.
        where: their matrix, for messages.

    Raises:
        CheckpointError: the products have several scales.
    """
    scales = {each.scale for each in products.values()}
    if len(scales) > 1:
        raise CheckpointError(f"{where}: its experts must have one scale, not {sorted(scales)}")
    one = next(iter(products.values()))
    rank = max(len(each.a) for each in products.values())
    dtype = np.result_type(*[each.a.dtype for each in products.values()], *[each.b.dtype for each in products.values()])
    a = np.zeros((groups, rank, one.a.shape[1]), dtype)
    b = np.zeros((groups, one.b.shape[0], rank), dtype)
    for expert, each in products.items():
        a[expert, : len(each.a)], b[expert, :, : len(each.a)] = each.a, each.b
    return LowRank(a, b, one.scale)


# ---- The changes of all modules of an adapter, by the names of the network's matrices ----


def merged(modules: Iterable[AdapterModule], targets: Targets) -> dict[str, Change]:
    """Return the changes of modules. Raises as `AdapterModule.changes`."""
    changes: dict[str, Change] = {}
    experts: dict[str, tuple[int, dict[int, LowRank]]] = {}
    for module in modules:
        for target, change in module.changes(targets):
            if target.expert is None:
                add(changes, target.name, change, module.first.where)
            elif change.low_rank is not None:
                experts.setdefault(target.name, (target.groups, {}))[1][target.expert] = change.low_rank
    for name, (groups, products) in experts.items():
        add(changes, name, Change(stacked(products, groups, name)), name)
    return changes


def add(changes: dict[str, Change], name: str, change: Change, where: str) -> None:
    """Add the change of a matrix. Raises CheckpointError if the adapter has another one of it."""
    if name in changes:
        raise CheckpointError(f"{where}: the adapter changes {name} twice")
    changes[name] = change


def tie_rows(changes: dict[str, Change]) -> None:
    """Let the head follow new rows of the embedding, which it is. Raises Unsupported."""
    new = changes.get(EMBEDDING, Change()).replaced
    if new is not None and new.rows is not None:
        own = changes.get(HEAD, Change())
        if own.magnitude is not None:
            raise Unsupported(f"magnitudes (DoRA) of {HEAD}", f"the adapter replaces rows of {EMBEDDING}, which it is")
        changes[HEAD] = own if own.replaced is not None else replace(own, replaced=new)


def largest_rank(changes: dict[str, Change]) -> int:
    """Return the largest rank of the products."""
    return max((each.low_rank.b.shape[-1] for each in changes.values() if each.low_rank is not None), default=0)
