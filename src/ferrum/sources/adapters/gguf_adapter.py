"""GGUF files of adapters, as the converter of llama.cpp writes them: `general.type` is "adapter".

Tensors are `blk.N.attn_q.weight.lora_a` [r, K] and `.lora_b` [N, r], those of experts stacked; A of the embedding is
transposed. Rows of B are in the order of the model's converter. Norms of adapters that mergekit extracts are whole
vectors, `blk.N.attn_norm.weight`, which llama.cpp itself skips.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.values import shown
from ferrum.models.families import load_families
from ferrum.models.gguf_architecture import ARCHITECTURES, VARIANTS, GgufArchitecture, hf_name, is_permuted
from ferrum.models.tensor_names import EMBEDDING
from ferrum.quant.dense import FORMATS
from ferrum.quant.gguf_blocks import dequantize
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.adapter_module import AdapterModule, AdapterTensor, Part, largest_rank, merged
from ferrum.sources.adapters.adapter_targets import Targets
from ferrum.sources.gguf_file import GgufFile
from ferrum.sources.gguf_store import unpermuted
from ferrum.sources.read_model import ReadModel
from ferrum.sources.tensor_file import FORMAT_OF

_ALPHA: Final = "adapter.lora.alpha"
_INVOCATION: Final = "adapter.alora.invocation_tokens"
_ABOUT: Final = {"task_name": "adapter.lora.task_name", "prompt_prefix": "adapter.lora.prompt_prefix"}
_READ: Final = frozenset(("adapter.type", _ALPHA, _INVOCATION, *_ABOUT.values()))
_PARTS: Final = {".lora_a": Part.A, ".lora_b": Part.B}
_NORMS: Final = {"_norm.weight": Part.WEIGHT, "_norm.bias": Part.BIAS}


def read_gguf_adapter(path: Path, model: ReadModel) -> AdapterFile:
    """Return the adapter in a GGUF file. Errors as `open_adapter`."""
    file, targets = GgufFile(path), Targets(model)
    entry = _entry(file, model)
    alpha, invocation = _alpha(file), _invocation(file)
    modules: dict[str, AdapterModule] = {}
    for name in file.tensors:
        where = f"{path}: tensor {name!r}"
        base, part = _split(name, where)
        if invocation and part in _NORMS.values():
            raise Unsupported(where, f"{_INVOCATION} switches low-rank products only")
        full = hf_name(base, entry)
        tensor = None if full is None else targets.tensor(full)
        if tensor is None:
            raise Unsupported(where, f"the model has no tensor {base} that an adapter can change")
        values = _values(file, name)
        if part is Part.B and entry.permuted and is_permuted(tensor):
            values = np.ascontiguousarray(values[unpermuted(tensor, len(values), model.store.config)])
        if tensor == EMBEDDING:
            part = Part.EMBEDDING_A if part is Part.A else Part.EMBEDDING_B
            values = values.T if part is Part.EMBEDDING_A else values
        module = modules.setdefault(tensor, AdapterModule(tensor, converted=True))
        module.add(part, AdapterTensor(where, values))
        if part in (Part.B, Part.EMBEDDING_B):
            module.scale = alpha / values.shape[-1] if alpha else 1.0
    if not modules:
        raise CheckpointError(f"{path}: has no tensors")
    changes = merged(modules.values(), targets)
    about = {name: str(file.metadata[key]) for name, key in _ABOUT.items() if key in file.metadata}
    digest = _digest(file, (alpha, invocation))
    return AdapterFile(str(path), changes, digest, largest_rank(changes), invocation, about)


def _entry(file: GgufFile, model: ReadModel) -> GgufArchitecture:
    """Return the entry of the file's architecture, which must be the model's.

    Raises:
        CheckpointError: the file is no adapter, or one for another architecture.
        Unsupported: another type of adapter, or metadata that is not understood.
    """
    metadata = file.metadata
    if metadata.get("general.type") != "adapter":
        raise CheckpointError(f"{file.path}: general.type must be adapter, not {shown(metadata.get('general.type'))}")
    if metadata.get("adapter.type") != "lora":
        raise Unsupported(f"{file.path}: adapter.type {shown(metadata.get('adapter.type'))}", "only lora is read")
    unknown = next((key for key in metadata if key.startswith("adapter.") and key not in _READ), None)
    if unknown is not None:
        raise Unsupported(f"{file.path}: {unknown}", f"{shown(metadata[unknown])} is not implemented")
    load_families()
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise Unsupported(f"{file.path}: general.architecture {shown(name)}", "no entry knows it")
    entries = [ARCHITECTURES[name]]
    if name in VARIANTS:
        entries.append(VARIANTS[name][1])
    own = next(iter(model.store.config.get("architectures") or ()), None)
    entry = next((each for each in entries if each.name == own), None)
    models = next((each for each in ARCHITECTURES.values() if each.name == own), entries[0])
    if entry is None and (models.permuted, models.parts) != (entries[0].permuted, entries[0].parts):
        raise CheckpointError(f"{file.path}: general.architecture is {name}, and the model is a {own}")
    return entry or entries[0]


def _alpha(file: GgufFile) -> float:
    """Return alpha; 0 leaves products as they are. Raises CheckpointError."""
    alpha = file.metadata.get(_ALPHA, 0.0)
    if type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise CheckpointError(f"{file.path}: {_ALPHA} must be a finite number, not {shown(alpha)}")
    return float(alpha)


def _invocation(file: GgufFile) -> tuple[int, ...]:
    """Return the tokens that switch an aLoRA on; none for other adapters. Raises CheckpointError."""
    tokens = file.metadata.get(_INVOCATION, [])
    if not isinstance(tokens, list) or not all(type(each) is int and each >= 0 for each in tokens):
        raise CheckpointError(f"{file.path}: {_INVOCATION} must be a list of token ids, not {shown(tokens)}")
    return tuple(tokens)


def _split(name: str, where: str) -> tuple[str, Part]:
    """Return the model's tensor and the part of an adapter's tensor. Raises Unsupported."""
    for end, part in _PARTS.items():
        if name.endswith(end):
            return name.removesuffix(end), part
    for end, part in _NORMS.items():
        if name.endswith(end):
            return f"{name.removesuffix(end)}_norm.weight", part
    raise Unsupported(where, "no part of an adapter is known by this name")


def _values(file: GgufFile, name: str) -> NDArray[Any]:
    """Return a tensor: floats as they are in the mapped file, blocks as float32 with exactly their numbers."""
    tensor, blocks = file.tensors[name], file.blocks(name)
    if tensor.kind in FORMAT_OF:
        floats: NDArray[Any] = np.ascontiguousarray(blocks).view(FORMATS[FORMAT_OF[tensor.kind]])
        return floats.reshape(tensor.shape)
    return dequantize(tensor.kind, blocks).reshape(tensor.shape)


def _digest(file: GgufFile, facts: tuple[float, tuple[int, ...]]) -> bytes:
    """Return a digest of the tensors, and of what the metadata says about them."""
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, info in sorted(file.tensors.items()):
        digest.update(json.dumps([name, info.kind, info.shape]).encode())
        digest.update(file.blocks(name).data)
    return digest.digest()
