"""PEFT directories: the tensors of `adapter_model.safetensors` by module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.adapters import Change
from ferrum.models.tensor_names import EMBEDDING
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.adapter_module import AdapterModule, AdapterTensor, Part, merged, tied
from ferrum.sources.adapters.adapter_targets import Targets
from ferrum.sources.adapters.peft_config import PeftConfig, read_peft_config
from ferrum.sources.read_model import ReadModel
from ferrum.sources.tensor_file import TensorFile

TENSORS: Final = "adapter_model.safetensors"
PICKLE: Final = "adapter_model.bin"

_PREFIX: Final = "base_model.model."

_PARTS: Final = {
    ".lora_A.weight": Part.A,
    ".lora_B.weight": Part.B,
    ".lora_B.bias": Part.B_BIAS,
    ".lora_embedding_A": Part.EMBEDDING_A,
    ".lora_embedding_B": Part.EMBEDDING_B,
    ".lora_magnitude_vector": Part.MAGNITUDE,
    ".lora_magnitude_vector.weight": Part.MAGNITUDE,
    ".token_adapter.trainable_tokens_delta": Part.ROWS,
    ".base_layer.weight": Part.BASE,
    ".base_layer.bias": Part.BIAS,
    ".weight": Part.WEIGHT,
    ".bias": Part.BIAS,
}
"""Ends of the names of tensors. The first one that matches counts."""


def read_peft(directory: Path, model: ReadModel) -> AdapterFile:
    """Return the adapter in a PEFT directory. Errors as `open_adapter`."""
    config = read_peft_config(directory)
    path = directory / TENSORS
    if not path.is_file() and (directory / PICKLE).is_file():
        step = f"load it once with PEFT and save it again, which writes {TENSORS}"
        raise Unsupported(f"{directory / PICKLE}", f"pickled files can run any code when opened; {step}")
    file, targets = TensorFile(path), Targets(model)
    modules = _modules(file, config, targets)
    changes = merged(modules, targets)
    _tie(changes, targets)
    ranks = [each.low_rank.b.shape[-1] for each in changes.values() if each.low_rank is not None]
    return AdapterFile(
        str(directory), changes, _digest(file, config, modules), max(ranks, default=0), config.invocation
    )


def _modules(file: TensorFile, config: PeftConfig, targets: Targets) -> dict[str, AdapterModule]:
    """Return the modules that have tensors in a file, by the names of their matrices."""
    modules: dict[str, AdapterModule] = {}
    for name in file.tensors:
        raw, part = _split(file, name)
        where = f"{file.path}: tensor {name!r}"
        tensor = targets.tensor(f"{raw}.weight")
        if tensor is None:
            raise Unsupported(where, f"the model has no module {raw} that an adapter can change")
        found = modules.setdefault(tensor, AdapterModule(tensor))
        values = file.read(name)
        if part in (Part.A, Part.EMBEDDING_A):
            found.rank, found.scale = config.rank(raw), config.scale(raw)
        if part is Part.EMBEDDING_A:
            values = values.T
        if part is Part.ROWS:
            found.rows = _rows(config, raw, where)
        if part is Part.MAGNITUDE and not config.has_magnitudes:
            raise CheckpointError(f"{where}: use_dora is false in {config.path}")
        found.add(part, AdapterTensor(where, values))
    return modules


def _split(file: TensorFile, name: str) -> tuple[str, Part]:
    """Return the module and the part of a tensor. Raises Unsupported."""
    for end, part in _PARTS.items():
        if name.startswith(_PREFIX) and name.endswith(end):
            return name.removeprefix(_PREFIX).removesuffix(end), part
    raise Unsupported(f"{file.path}: tensor {name!r}", "no part of an adapter is known by this name")


def _rows(config: PeftConfig, module: str, where: str) -> tuple[int, ...]:
    """Return the trained rows of a module. Raises CheckpointError."""
    for name, rows in config.rows.items():
        if name == "" or module == name or module.endswith(f".{name}"):
            return rows
    raise CheckpointError(f"{where}: trainable_token_indices of {config.path} names no rows of {module}")


def _tie(changes: dict[str, Change], targets: Targets) -> None:
    """Let a tied head follow trained rows of the embedding, which PEFT saves once."""
    new = changes.get(EMBEDDING)
    if targets.tied_head and new is not None and new.replaced is not None and new.replaced.rows is not None:
        tied(changes, new)


def _digest(file: TensorFile, config: PeftConfig, modules: Mapping[str, AdapterModule]) -> bytes:
    """Return a digest of the tensors, and of what the configuration says about them."""
    digest = hashlib.sha256()
    for text, content in _contents(file):
        digest.update(text)
        digest.update(content)
    facts = [(each.name, each.scale, each.rows) for _, each in sorted(modules.items())]
    digest.update(json.dumps([facts, config.invocation, config.ties]).encode())
    return digest.digest()


def _contents(file: TensorFile) -> Iterator[tuple[bytes, Any]]:
    for name, info in sorted(file.tensors.items()):
        yield json.dumps([name, info.dtype, info.shape]).encode(), file.read_bytes(name)
