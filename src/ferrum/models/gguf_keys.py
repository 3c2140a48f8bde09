"""GGUF metadata as the `config.json` of the same model in the Hugging Face layout.

A key that changes arithmetic and that no entry understands is refused. The entries are in `gguf_dense.py` and
`gguf_experts.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.config_reader import MAX_INTEGER
from ferrum.models.gguf_architecture import KEYS, GgufArchitecture
from ferrum.models.gguf_dense import DENSE
from ferrum.models.gguf_experts import EXPERTS
from ferrum.models.gguf_names import ROPE_FACTORS

ARCHITECTURES: Final[Mapping[str, GgufArchitecture]] = {**DENSE, **EXPERTS}
"""Architectures by GGUF's name."""

NEXTN: Final = "nextn_predict_layers"
"""The key of the number of last layers that predict further tokens, which are left out."""

_MAX_LAYERS: Final = 10_000
"""Limit of lists that are as long as a model has layers."""

_WINDOW: Final = "attention.sliding_window"
_PATTERN: Final = "attention.sliding_window_pattern"
_ROTATED: Final = "rope.dimension_count"
_TEMPERATURE: Final = "attention.temperature_scale"
_LOG_MULTIPLIER: Final = "rope.scaling.yarn_log_multiplier"
_GATING: Final = "expert_gating_func"
_READ_HERE: Final = {
    *(_WINDOW, _PATTERN, _ROTATED, _GATING, NEXTN),
    *("attention.value_length", "vocab_size", "rope.scaling.type", "rope.scaling.yarn_ext_factor"),
}
_SCALING: Final = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
"""Metadata keys of rope scaling, and their names in `config.json`."""

_WITHOUT_EFFECT: Final = {"rope.scaling.finetuned"}
_COUNTS: Final = {"expert_count", "expert_used_count", "expert_shared_count", "expert_group_count"}
"""Keys without effect if they are 0."""


def architecture_of(metadata: Mapping[str, Any], tensors: Collection[str]) -> tuple[str, GgufArchitecture]:
    """Return GGUF's name of the architecture and the entry that a file means. Raises CheckpointError or Unsupported."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"general.architecture must be a name, not {name!r}")
    if name not in ARCHITECTURES:
        raise Unsupported(f"GGUF architecture {name!r}", f"known: {', '.join(sorted(ARCHITECTURES))}")
    entry, values = ARCHITECTURES[name], _values(name, metadata)
    return name, next((other for means, other in entry.variants if means(values, tensors)), entry)


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
        factors: the numbers of the tensors of `ROPE_FACTORS` that the file has.

    Raises:
        CheckpointError: a key is missing.
        Unsupported: the architecture, or a key that changes arithmetic.
    """
    prefix, entry = architecture_of(metadata, tensors)
    values = _values(prefix, metadata)
    _refuse_unknown(prefix, entry, values)
    try:
        return _config(prefix, entry, values, tensors, vocab_size, factors or {})
    except (LookupError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"GGUF metadata of {prefix} is missing or invalid: {error!r}") from error


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
        **{theirs: values[ours] for ours, theirs in keys.items() if ours in values},
    }
    for key in ("attention.head_count", "embedding_length", "block_count"):
        if not isinstance(values.get(key), int) or not 0 < values[key] <= MAX_INTEGER:
            raise CheckpointError(f"GGUF metadata {prefix}.{key} must be a positive integer, not {values.get(key)!r}")
    config["num_hidden_layers"] = count = values["block_count"] - values.get(NEXTN, 0)
    if not isinstance(count, int) or not 0 < count <= _MAX_LAYERS:
        raise CheckpointError(f"GGUF metadata {prefix}.block_count: {count!r} layers")
    if entry.heads:
        _add_head(prefix, entry, values, config)
    _add_windows(prefix, entry, values, config)
    _add_rope(prefix, entry, values, config, factors)
    if entry.derive is not None:
        config.update(entry.derive(values, tensors, config))
    return config


def _values(prefix: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the architecture by shorter keys; a list of equal numbers is one number."""
    own = {key.removeprefix(f"{prefix}."): value for key, value in metadata.items() if key.startswith(f"{prefix}.")}
    for key, value in own.items():
        if key != _PATTERN and isinstance(value, list) and value and all(each == value[0] for each in value):
            own[key] = value[0]
    return {key: value for key, value in own.items() if key not in _COUNTS or value}


def _refuse_unknown(prefix: str, entry: GgufArchitecture, values: Mapping[str, Any]) -> None:
    """Raise Unsupported for keys that are not understood, or values that are not implemented."""
    understood = {*KEYS, *entry.keys, *entry.ignored, *_READ_HERE, *_SCALING, *_WITHOUT_EFFECT}
    if entry.log_multiplier is not None:
        understood |= {_LOG_MULTIPLIER, _TEMPERATURE}
    for key, value in values.items():
        if key not in understood:
            raise _refusal(prefix, key, value, "this key is not understood and may change results")
    if values.get(_WINDOW) and _WINDOW not in entry.keys:
        raise _refusal(prefix, _WINDOW, values[_WINDOW], "windows of this architecture are not read from GGUF files")
    if values.get(_GATING) not in (None, 0, entry.gating):
        raise _refusal(prefix, _GATING, values[_GATING], "the model routes in another way")
    if values.get("rope.scaling.yarn_ext_factor", 1) not in (1, -1):
        raise _refusal(prefix, "rope.scaling.yarn_ext_factor", values["rope.scaling.yarn_ext_factor"], "only 1 is read")


def _refusal(prefix: str, key: str, value: Any, reason: str) -> Unsupported:
    return Unsupported(f"GGUF metadata {prefix}.{key}={value!r}", reason)


def _add_head(prefix: str, entry: GgufArchitecture, values: Mapping[str, Any], config: dict[str, Any]) -> None:
    """Add the width of heads, and how many of their numbers are rotated."""
    head_dim = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    for key in ("attention.value_length", *(() if entry.partial else (_ROTATED,))):
        if values.get(key, head_dim) != head_dim:
            raise _refusal(prefix, key, values[key], f"heads have {head_dim} numbers")
    if entry.partial and _ROTATED in values:
        share = entry.partial.endswith("_factor")
        config[entry.partial] = values[_ROTATED] / head_dim if share else values[_ROTATED]


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
        raise _refusal(prefix, _PATTERN, values[_PATTERN], f"a number or {count} flags are read")
    config["layer_types"] = ["sliding_attention" if window and each else "full_attention" for each in slides[:count]]


def _add_rope(
    prefix: str,
    entry: GgufArchitecture,
    values: Mapping[str, Any],
    config: dict[str, Any],
    factors: Mapping[str, list[float]],
) -> None:
    """Add the scaling of the rope as `config.json` spells it, if there is one."""
    plain, long, short = (factors.get(name) for name in ROPE_FACTORS)
    kind = values.get("rope.scaling.type", "none")
    scaling = {theirs: values[ours] for ours, theirs in _SCALING.items() if ours in values}
    if long is not None and short is not None:
        scaling = {**scaling, "rope_type": "longrope", "long_factor": long, "short_factor": short}
    elif plain is not None and kind == "none":
        scaling = {"rope_type": "factors", "factors": plain}
    elif kind in ("linear", "yarn") and plain is None:
        scaling = {**scaling, "rope_type": kind, **(entry.rope_fixed if kind == "yarn" else {})}
    elif kind == "none":
        scaling = {}
    else:
        raise _refusal(prefix, "rope.scaling.type", kind, "linear, yarn and longrope are read")
    if entry.log_multiplier is not None and kind == "yarn" and _LOG_MULTIPLIER in values:
        mscale = round(values[_LOG_MULTIPLIER] / entry.log_multiplier, 6)  # a float32 in the file
        scaling |= {"mscale": mscale, "mscale_all_dim": mscale}
    if values.get(_TEMPERATURE):
        scaling["llama_4_scaling_beta"] = values[_TEMPERATURE]
    if entry.rope == "rope_parameters":
        scaling.setdefault("rope_type", "default")
        scaling["rope_theta"] = config.get("rope_theta", 10000.0)
    if scaling:
        config[entry.rope] = scaling
