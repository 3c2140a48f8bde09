"""`PeftConfig`: what the `adapter_config.json` of a PEFT directory says about the arithmetic of its tensors.

The tensors that are found decide what is changed, so fields that name modules are not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.values import shown
from ferrum.sources.adapters.adapter_module import MAX_RANK
from ferrum.text.model_files import DirectoryFiles, read_json_object

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
    return PeftConfig(path, values, _invocation(plain), _rows(plain))


def _invocation(config: PeftConfig) -> tuple[int, ...]:
    tokens = config.values.get("alora_invocation_tokens")
    if tokens is None:
        return ()
    if not _are_ids(tokens) or not tokens:
        raise config.wrong("alora_invocation_tokens", f"must be a list of token ids, not {shown(tokens)}")
    return tuple(tokens)


def _rows(config: PeftConfig) -> dict[str, tuple[int, ...]]:
    """Return the trained rows by module; a list without a name is of the embedding."""
    given = config.values.get("trainable_token_indices")
    lists = given if isinstance(given, dict) else {} if given is None else {"": given}
    for rows in lists.values():
        if not _are_ids(rows) or len(set(rows)) < len(rows):
            raise config.wrong("trainable_token_indices", f"must be different token ids, not {shown(rows)}")
    return {name: tuple(rows) for name, rows in lists.items()}


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
