"""PEFT directories: the tensors of `adapter_model.safetensors` by module."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.values import shown
from ferrum.kernels.adapters import Change
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.sources.adapters.adapter_file import AdapterFile
from ferrum.sources.adapters.adapter_module import (
    FIRST_PLAIN,
    MAX_RANK,
    AdapterModule,
    AdapterTensor,
    Part,
    add,
    expert_products,
    largest_rank,
    merged,
    parameter_of,
    tie_rows,
)
from ferrum.sources.adapters.adapter_targets import ExpertMatrices, Targets
from ferrum.sources.read_model import ReadModel
from ferrum.sources.tensor_file import TensorFile
from ferrum.text.model_files import DirectoryFiles, read_json_object

# ---- `PeftConfig`: what the `adapter_config.json` of a PEFT directory says about the arithmetic of its tensors ----
#
# The tensors that are found decide what is changed, so fields that name modules are not read.

CONFIG: Final = "adapter_config.json"
_READ: Final = frozenset(
    (
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights"),
        *("use_dora", "alora_invocation_tokens", "trainable_token_indices", "peft_version"),
        *("modules_to_save", "ensure_weight_tying"),
    )
)
_WITHOUT_EFFECT: Final = frozenset(
    (
        *("task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "lora_dropout"),
        *("target_modules", "exclude_modules", "target_parameters", "layers_to_transform"),
        *("layers_pattern", "bias", "lora_bias", "fan_in_fan_out", "megatron_core", "qalora_group_size"),
        *("eva_config", "corda_config", "lora_ga_config", "loftq_config", "runtime_config"),
    )
)
"""Fields of training, and fields that repeat what tensors say: a tied head that is adapted, too, has its own.

Linear layers ignore fan_in_fan_out.
"""

_MAX_ALPHA: Final = 1e30

_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the weights of the base model. PEFT can save such adapters as plain ones."""


_REPEATS: Final = re.compile(r"[*+{]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+{]")
_MAX_REPEATS: Final = 3
"""Patterns of files must not take time that grows without a limit: nothing else runs during a match."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The checked configuration of an adapter.

    Attributes:
        path: of the file, for messages.
        values: of the file.
        invocation: tokens that switch an aLoRA on.
        rows: trained rows of embeddings: by the end of the module's name, or by "" for the embedding itself.
    """

    path: Path
    values: Mapping[str, Any]
    invocation: tuple[int, ...]
    rows: Mapping[str, tuple[int, ...]]

    @property
    def version(self) -> tuple[int, ...]:
        """The version of PEFT that wrote the adapter, as far as it is known: (0, 21)."""
        found = re.match(r"(\d+)\.(\d+)", str(self.values.get("peft_version")))
        return () if found is None else (int(found[1]), int(found[2]))

    @property
    def has_magnitudes(self) -> bool:
        """Whether the adapter is a DoRA."""
        return bool(self.values.get("use_dora"))

    def saves(self, module: str, *, head: bool) -> bool:
        """Return whether the file's weight of a module is a trained one, not a copy of the base's.

        Args:
            module: its name.
            head: whether it is the head, which a tied one may follow.
        """
        saved = self.values.get("modules_to_save")
        names = [each for each in saved if isinstance(each, str)] if isinstance(saved, list) else []
        follows = head and bool(self.values.get("ensure_weight_tying")) and bool(names)
        return follows or any(module == each or module.endswith(f".{each}") for each in names)

    def rank(self, module: str) -> int:
        """Return the rank of a module's matrices. Raises CheckpointError."""
        field, rank = self._of(module, "rank_pattern", "r", 8)
        if type(rank) is not int or not 1 <= rank <= MAX_RANK:
            raise self.wrong(field, f"the rank of {module} must be an integer of 1 to {MAX_RANK}, not {shown(rank)}")
        return rank

    def scale(self, module: str) -> float:
        """Return the factor of a module's product: alpha / r, with rsLoRA alpha / sqrt(r). Raises CheckpointError."""
        rank = self.rank(module)
        field, alpha = self._of(module, "alpha_pattern", "lora_alpha", 8)
        if type(alpha) not in (int, float) or not abs(alpha) <= _MAX_ALPHA:
            raise self.wrong(
                field, f"the alpha of {module} must be a number of at most {_MAX_ALPHA:g}, not {shown(alpha)}"
            )
        return float(alpha / (math.sqrt(rank) if self.values.get("use_rslora") else rank))

    def _of(self, module: str, pattern: str, field: str, default: int) -> tuple[str, Any]:
        """Return field and value of a module: of the first pattern that its name matches, or of all modules."""
        patterns = self.values.get(pattern) or {}
        if not isinstance(patterns, dict):
            raise self.wrong(pattern, f"must be an object, not {shown(patterns)}")
        for key, value in patterns.items():
            if len(_REPEATS.findall(key)) > _MAX_REPEATS or _REPEATED_GROUP.search(key):
                raise self.wrong(pattern, f"{shown(key)} has more repetitions than patterns of names need")
            try:
                if re.match(rf"(.*\.)?({key})$", module):
                    return pattern, value
            except re.error as error:
                raise self.wrong(pattern, f"{shown(key)} is not a regular expression: {error}") from error
        return field, self.values.get(field, default)

    def wrong(self, field: str, problem: str) -> CheckpointError:
        """Return the error of a field."""
        return CheckpointError(f"{self.path}: {field}: {problem}")


def read_peft_config(directory: Path) -> PeftConfig:
    """Return the configuration of a PEFT directory.

    Raises:
        CheckpointError: it is missing or damaged, or a field is invalid.
        Unsupported: a field changes the result in a way that is not implemented; the error names it.
    """
    path = directory / CONFIG
    values = read_json_object(DirectoryFiles(directory), CONFIG)
    if values is None:
        raise CheckpointError(f"{path}: there is no such file; is {directory} the directory of an adapter?")
    if values.get("peft_type") != "LORA":
        raise Unsupported(f"{path}: peft_type {shown(values.get('peft_type'))}", "only LORA is implemented")
    initial = values.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_CHANGES_BASE):
        step = "save it again with path_initial_model_for_weight_conversion"
        raise Unsupported(f"{path}: init_lora_weights {initial!r}", f"it changes the base model's weights: {step}")
    for field, value in values.items():
        if field not in _READ | _WITHOUT_EFFECT and value not in (None, False, "", [], {}):
            reason = f"{shown(value)} is not implemented"
            if field == "invocation_string":
                reason = "only alora_invocation_tokens is read: older adapters begin one token later"
            raise Unsupported(f"{path}: {field}", reason)
    plain = PeftConfig(path, values, (), {})
    return PeftConfig(path, values, _invocation(plain), _config_rows(plain))


def _invocation(config: PeftConfig) -> tuple[int, ...]:
    tokens = config.values.get("alora_invocation_tokens")
    if tokens is None:
        return ()
    if not _are_ids(tokens) or not tokens:
        raise config.wrong("alora_invocation_tokens", f"must be a list of token ids, not {shown(tokens)}")
    return tuple(tokens)


def _config_rows(config: PeftConfig) -> dict[str, tuple[int, ...]]:
    """Return the trained rows by module; a list without a name is of the embedding."""
    given = config.values.get("trainable_token_indices")
    lists = given if isinstance(given, dict) else {} if given is None else {"": given}
    for rows in lists.values():
        if not _are_ids(rows) or len(set(rows)) < len(rows):
            raise config.wrong("trainable_token_indices", f"must be different token ids, not {shown(rows)}")
    return {name: tuple(rows) for name, rows in lists.items()}


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


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
