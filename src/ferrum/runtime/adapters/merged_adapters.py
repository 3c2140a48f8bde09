"""Adapters that are merged into a model: opened, checked, and put into its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferrum.core.config import ModelConfig
from ferrum.core.errors import ConfigError, RequestError, Unsupported
from ferrum.core.lora_option import AdapterToMerge
from ferrum.models.decoder import inventory
from ferrum.runtime.adapters.merged_numbers import ScaledChange
from ferrum.runtime.adapters.merged_tensors import SERVE, MergedTensors
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.open_adapter import open_adapter
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.parameters import model_spec
from ferrum.sources.read_model import read_spec
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
