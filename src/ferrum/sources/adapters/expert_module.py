"""Modules of all experts: `target_parameters` of PEFT, stacks of GGUF files, and experts that come one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ferrum.core.errors import CheckpointError
from ferrum.kernels.adapters import LowRank
from ferrum.sources.adapters.adapter_module import AdapterModule, Part
from ferrum.sources.adapters.adapter_targets import ExpertMatrices

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
