"""The changes of all modules of an adapter, by the names of the network's matrices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.adapters import Change, LowRank
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.sources.adapters.adapter_module import AdapterModule
from ferrum.sources.adapters.adapter_targets import Targets
from ferrum.sources.adapters.expert_module import stacked


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
