"""PEFT directories: the tensors of `adapter_model.safetensors` by module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.adapters import Change
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.sources.adapters.adapter_changes import add, largest_rank, merged, tie_rows
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.adapter_module import AdapterModule, AdapterTensor, Part
from ferrum.sources.adapters.adapter_targets import ExpertMatrices, Targets
from ferrum.sources.adapters.expert_module import FIRST_PLAIN, expert_products, parameter_of
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
    if not path.is_file():
        step = f"load an adapter of {PICKLE} with PEFT and save it again: pickled files can run any code when opened"
        raise CheckpointError(f"{path}: there is no such file; {step}")
    file, targets = TensorFile(path), Targets(model)
    if not file.tensors:
        raise CheckpointError(f"{path}: has no tensors")
    modules = _modules(file, config, targets)
    whole = {raw: experts for raw in modules if (experts := targets.experts_of(_plain(raw))) is not None}
    if config.invocation:
        _check_switched(modules)
    changes = merged((each for raw, each in modules.items() if raw not in whole), targets)
    for raw, experts in whole.items():
        _add_experts(changes, config, modules[raw], experts)
    if targets.tied_head:
        tie_rows(changes)
    digest = _digest(file, config, modules)
    return AdapterFile(str(directory), changes, digest, largest_rank(changes), config.invocation)


def _modules(file: TensorFile, config: PeftConfig, targets: Targets) -> dict[str, AdapterModule]:
    """Return the modules that have tensors in a file, by their names in it."""
    modules: dict[str, AdapterModule] = {}
    for name in file.tensors:
        raw, part = _split(file, name)
        where = f"{file.path}: tensor {name!r}"
        tensor, experts = targets.tensor(f"{raw}.weight"), targets.experts_of(_plain(raw))
        if tensor is None and experts is None:
            raise Unsupported(where, f"the model has no module {raw} that an adapter can change")
        found = modules.setdefault(raw, AdapterModule(tensor or raw))
        if part in (Part.A, Part.EMBEDDING_A) and experts is None:
            found.rank, found.scale = config.rank(raw), config.scale(raw)
        if part is Part.WEIGHT and tensor in (EMBEDDING, HEAD) and not config.saves(raw, head=tensor == HEAD):
            part = Part.BASE  # save_embedding_layers
        if part is Part.ROWS:
            found.rows = _rows(config, raw, where)
        if part is Part.MAGNITUDE and not config.has_magnitudes:
            raise CheckpointError(f"{where}: use_dora is false in {config.path}")
        found.add(part, AdapterTensor(where, file.read(name)))
    if config.rows and not any(Part.ROWS in each.parts for each in modules.values()):
        raise CheckpointError(f"{file.path}: has no rows for trainable_token_indices of {config.path}")
    for module in modules.values():
        first = module.parts.get(Part.A, module.parts.get(Part.EMBEDDING_A))
        if config.has_magnitudes and first is not None and Part.MAGNITUDE not in module.parts:
            raise first.wrong(f"use_dora is true in {config.path}, and its magnitude is missing")
    return modules


def _check_switched(modules: Mapping[str, AdapterModule]) -> None:
    """Refuse what PEFT also applies to the tokens before the invocation of an aLoRA."""
    for module in modules.values():
        for part, tensor in module.parts.items():
            if part not in (Part.A, Part.B, Part.B_BIAS):
                raise tensor.refused("alora_invocation_tokens switches low-rank products of linear layers only")


def _split(file: TensorFile, name: str) -> tuple[str, Part]:
    """Return the module and the part of a tensor. Raises Unsupported."""
    for end, part in _PARTS.items():
        if name.startswith(_PREFIX) and name.endswith(end):
            return name.removeprefix(_PREFIX).removesuffix(end), part
    raise Unsupported(f"{file.path}: tensor {name!r}", "no part of an adapter is known by this name")


def _plain(module: str) -> str:
    """Return a module's name without those of wrappers around it."""
    return module.replace(".base_layer", "")


def _add_experts(
    changes: dict[str, Change], config: PeftConfig, module: AdapterModule, experts: ExpertMatrices
) -> None:
    """Add the changes of a module of all experts."""
    parameter = parameter_of(module, experts)
    key = f"{_plain(module.name)}.{parameter}"
    module.rank, module.scale = config.rank(key), config.scale(key)
    for name, product in expert_products(module, experts, parameter, config.version):
        add(changes, name, Change(product), module.first.where)


def _rows(config: PeftConfig, module: str, where: str) -> tuple[int, ...]:
    """Return the trained rows of a module. Raises CheckpointError."""
    for name, rows in config.rows.items():
        if name == "" or module == name or module.endswith(f".{name}"):
            return rows
    raise CheckpointError(f"{where}: trainable_token_indices of {config.path} names no rows of {module}")


def _digest(file: TensorFile, config: PeftConfig, modules: Mapping[str, AdapterModule]) -> bytes:
    """Return a digest of the tensors, and of what the configuration says about them."""
    facts = [[raw, each.scale, each.rows] for raw, each in sorted(modules.items())]
    digest = hashlib.sha256(json.dumps([facts, config.invocation, config.version < FIRST_PLAIN]).encode())
    for name, info in sorted(file.tensors.items()):
        digest.update(json.dumps([name, info.dtype, info.shape]).encode())
        digest.update(file.read_bytes(name).data)
    return digest.digest()
