"""GGUF metadata as the `config.json` of the same model in the Hugging Face layout.

A key that changes arithmetic and that no entry understands is refused. The entries are in the files of the families.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.config_reader import MAX_INTEGER
from ferrum.models.families import LAYER_BIASES, layer_biases, load_families
from ferrum.models.gguf_architecture import (
    ABSENT,
    ARCHITECTURES,
    COUNTED,
    EPSILON,
    INNER,
    KEYS,
    NEUTRAL,
    REQUIRED,
    RMS_EPSILON,
    TOWER_KEYS,
    VARIANTS,
    WIDTH,
    WITHOUT_EFFECT,
    GgufArchitecture,
)
from ferrum.models.gguf_rope import LOG_MULTIPLIER, ROPE_KEYS, SECTIONS, TEMPERATURE, add_rope, refusal

NEXTN: Final = "nextn_predict_layers"
"""The key of the number of last layers that predict further tokens, which are left out."""

_MAX_LAYERS: Final = 10_000
"""Limit of lists that are as long as a model has layers."""

_WINDOW: Final = "attention.sliding_window"
_PATTERN: Final = "attention.sliding_window_pattern"
_ROTATED: Final = "rope.dimension_count"
_LISTS: Final = (_PATTERN, *SECTIONS)
"""Keys of lists that may have equal numbers."""

_GATING: Final = "expert_gating_func"
_NORMED: Final = "expert_weights_norm"
_KV_HEADS: Final = "attention.head_count_kv"
_RECURRENT: Final = "attention.recurrent_layers"
_READ_HERE: Final = {*(_WINDOW, _PATTERN, _ROTATED, _GATING, NEXTN), "attention.value_length"}
_COUNTS: Final = {*COUNTED, "expert_shared_count", "expert_group_count"}
"""Keys without effect if they are 0."""


def architecture_of(metadata: Mapping[str, Any], tensors: Collection[str]) -> tuple[str, GgufArchitecture]:
    """Return GGUF's name of the architecture and the entry that a file means. Raises CheckpointError or Unsupported."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"general.architecture must be a name, not {name!r}")
    load_families()
    if name not in ARCHITECTURES:
        raise Unsupported(f"GGUF architecture {name!r}", f"known: {', '.join(sorted(ARCHITECTURES))}")
    entry = ARCHITECTURES[name]
    if name in VARIANTS:
        means, other = VARIANTS[name]
        entry = other if means(_values(name, metadata), tensors) else entry
    return name, entry


def key_of(field: str, metadata: Mapping[str, Any], entry: GgufArchitecture) -> str:
    """Return the metadata key that a field of `config.json` is read from, for messages."""
    found = next((key for key, theirs in {**entry.keys, **KEYS, **entry.keys}.items() if theirs == field), field)
    return f"GGUF metadata {metadata['general.architecture']}.{found}"


def hf_config(
    metadata: Mapping[str, Any],
    tensors: Collection[str],
    vocab_size: int,
    factors: Mapping[str, list[float]] | None = None,
) -> dict[str, Any]:
    """Return the `config.json` of a GGUF model.

    Args:
        metadata: of the file.
        tensors: names of its tensors.
        vocab_size: rows of the embedding.
        factors: the numbers of the tensors of `gguf_names.ROPE_FACTORS` that the file has.

    Raises:
        CheckpointError: a key is missing.
        Unsupported: the architecture, or a key that changes arithmetic.
    """
    prefix, entry = architecture_of(metadata, tensors)
    entries = _values(prefix, metadata)
    _refuse_unknown(prefix, entry, entries)
    entries, recurrent = _without_recurrent(prefix, entry, entries)
    _refuse_missing(prefix, entry, entries, metadata)
    if "output.bias" in tensors:
        raise Unsupported("GGUF tensor output.bias", "a bias of the head is not implemented")
    values = {**ABSENT, _KV_HEADS: entries["attention.head_count"], **entry.absent, **entries}
    try:
        config = _config(prefix, entry, values, tensors, vocab_size, factors or {})
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"GGUF metadata of {prefix} is missing or invalid: {error!r}") from error
    kinds = [entry.recurrent if each else "full_attention" for each in recurrent[: config["num_hidden_layers"]]]
    return {**config, "layer_types": kinds} if kinds else config


def _without_recurrent(
    prefix: str, entry: GgufArchitecture, given: dict[str, Any]
) -> tuple[dict[str, Any], list[bool]]:
    """Return the metadata with one number of KV heads, and which layers have no attention, if a file lists them."""
    heads, listed, count = given.get(_KV_HEADS), given.get(_RECURRENT), given.get("block_count")
    if entry.recurrent is None or not (isinstance(heads, list) or _RECURRENT in given):
        return given, []
    if isinstance(heads, list) and _RECURRENT not in given:
        listed = [not each for each in heads]
    recurrent = listed if isinstance(listed, list) else [bool(listed)] * int(count or 0)
    if len(recurrent) != count:
        key = _RECURRENT if _RECURRENT in given else _KV_HEADS
        raise refusal(prefix, key, given[key], f"block_count needs {count} numbers")
    heads = heads if isinstance(heads, list) else [heads] * len(recurrent)
    own = {each for each, none in zip(heads, recurrent, strict=False) if not none}
    if len(own) != 1:
        raise refusal(prefix, _KV_HEADS, heads, "all layers with attention must have the same number")
    return {**given, _KV_HEADS: own.pop()}, recurrent


def _config(
    prefix: str,
    entry: GgufArchitecture,
    values: Mapping[str, Any],
    tensors: Collection[str],
    vocab_size: int,
    factors: Mapping[str, list[float]],
) -> dict[str, Any]:
    keys = {**KEYS, **entry.keys}
    config: dict[str, Any] = {
        "architectures": [entry.name],
        "model_type": entry.model_type,
        "vocab_size": vocab_size,
        "rope_theta": 10000.0,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        **entry.fixed,
        **{theirs: name in tensors for theirs, name in entry.flags.items()},
        **{theirs: values[ours] for ours, theirs in keys.items() if ours in values},
    }
    config["num_hidden_layers"] = count = values["block_count"] - values.get(NEXTN, 0)
    if not isinstance(count, int) or not 0 < count <= _MAX_LAYERS:
        counts = f"{prefix}.block_count={values['block_count']} and {NEXTN}={values.get(NEXTN, 0)!r}"
        raise CheckpointError(f"GGUF metadata {counts} must leave 1 to {_MAX_LAYERS} layers")
    if entry.heads:
        _add_head(prefix, entry, values, config)
    _add_windows(prefix, entry, values, config)
    add_rope(prefix, entry, values, config, factors)
    if entry.derive is not None:
        config.update(entry.derive(values, tensors, config))
    biases = layer_biases(tensors, count)
    return {**config, LAYER_BIASES: biases} if any(biases) else config


def _values(prefix: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the architecture by shorter keys; a list of equal numbers is one number."""
    own = {key.removeprefix(f"{prefix}."): value for key, value in metadata.items() if key.startswith(f"{prefix}.")}
    for key, value in own.items():
        if key not in _LISTS and isinstance(value, list) and value and all(each == value[0] for each in value):
            own[key] = value[0]
    return {
        key: value for key, value in own.items() if not key.startswith(TOWER_KEYS) and (key not in _COUNTS or value)
    }


def _refuse_unknown(prefix: str, entry: GgufArchitecture, values: Mapping[str, Any]) -> None:
    """Raise Unsupported for keys that are not understood, or values that are not implemented."""
    understood = {*KEYS, *entry.keys, *entry.ignored, *_READ_HERE, *WITHOUT_EFFECT, *ROPE_KEYS}
    if entry.log_multiplier is not None:
        understood |= {LOG_MULTIPLIER, TEMPERATURE}
    if entry.recurrent is not None:
        understood.add(_RECURRENT)
    for key, value in values.items():
        if key not in understood and value not in _neutral(entry, key):
            raise refusal(prefix, key, value, "this key is not understood and may change results")
    if values.get(_WINDOW) and _WINDOW not in entry.keys:
        raise refusal(prefix, _WINDOW, values[_WINDOW], "windows of this architecture are not read from GGUF files")
    if values.get(_GATING) not in (None, 0, entry.gating):
        raise refusal(prefix, _GATING, values[_GATING], "the model routes in another way")
    for key, known in entry.only.items():
        if key in values and values[key] not in known:
            raise refusal(prefix, key, values[key], f"only {' and '.join(map(repr, known))} is read")


def _neutral(entry: GgufArchitecture, key: str) -> tuple[Any, ...]:
    """Return the values with which a key has no effect."""
    if key == _NORMED and "norm_topk_prob" in entry.fixed:
        return (entry.fixed["norm_topk_prob"],)
    return NEUTRAL.get(key, ())


def _refuse_missing(
    prefix: str, entry: GgufArchitecture, values: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    """Raise CheckpointError for keys without which no engine reads a file, and lists where one number is read."""
    epsilon = EPSILON if EPSILON in entry.keys else RMS_EPSILON
    wide = () if INNER in (*entry.keys, *entry.ignored) else (WIDTH,)
    for key in (*REQUIRED, epsilon, *wide, *entry.required):
        if key in entry.absent:
            continue
        if key not in values and (key in COUNTED or f"{prefix}.{key}" not in metadata):
            raise CheckpointError(f"GGUF metadata has no {prefix}.{key}")
    for key in ("attention.head_count", "embedding_length", "block_count"):
        if not isinstance(values[key], int) or not 0 < values[key] <= MAX_INTEGER:
            raise CheckpointError(f"GGUF metadata {prefix}.{key} must be a positive integer, not {values[key]!r}")
    for key in (*KEYS, *entry.keys) if entry.heads else ():
        if isinstance(values.get(key), list):
            raise refusal(prefix, key, values[key], "all layers must have the same number")


def _add_head(prefix: str, entry: GgufArchitecture, values: Mapping[str, Any], config: dict[str, Any]) -> None:
    """Add the width of heads, and how many of their numbers are rotated."""
    head_dim = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    for key in ("attention.value_length", *(() if entry.partial else (_ROTATED,))):
        if values.get(key, head_dim) != head_dim:
            raise refusal(prefix, key, values[key], f"heads have {head_dim} numbers")
    if entry.partial:
        share, rotated = entry.partial.endswith("_factor"), values.get(_ROTATED, head_dim)
        config[entry.partial] = rotated / head_dim if share else rotated


def _add_windows(prefix: str, entry: GgufArchitecture, values: Mapping[str, Any], config: dict[str, Any]) -> None:
    """Add the kinds of layers. A window of 0 is none."""
    count, window = config["num_hidden_layers"], values.get(_WINDOW) or None
    if _WINDOW in entry.keys:
        config["sliding_window"] = window
    if entry.period is None:
        return
    slides = values.get(_PATTERN, entry.period)
    if isinstance(slides, int) and slides > 0:
        slides = [(i + 1) % slides for i in range(count)]
    if not isinstance(slides, list) or len(slides) < count:
        raise refusal(prefix, _PATTERN, values[_PATTERN], f"a number or {count} flags are read")
    config["layer_types"] = ["sliding_attention" if window and each else "full_attention" for each in slides[:count]]
