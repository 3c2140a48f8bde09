"""The scaling of the rope in GGUF metadata, as `config.json` spells it.

As in llama.cpp, a factor without a type is a linear one, and a type without a factor scales nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import Unsupported
from ferrum.models.gguf_architecture import ROPE_FACTORS, GgufArchitecture

TEMPERATURE: Final = "attention.temperature_scale"
LOG_MULTIPLIER: Final = "rope.scaling.yarn_log_multiplier"

_TYPE: Final = "rope.scaling.type"
_FACTOR: Final = "rope.scaling.factor"
_OLD_FACTOR: Final = "rope.scale_linear"
_EXTRAPOLATION: Final = "rope.scaling.yarn_ext_factor"
_ATTENTION: Final = "rope.scaling.attn_factor"
_YARN_ATTENTION: Final = "rope.scaling.yarn_attn_factor"
_SCALING: Final = {
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    _ATTENTION: "attention_factor",
    _YARN_ATTENTION: "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
"""Metadata keys of rope scaling, and their names in `config.json`."""

_TYPES: Final = ("none", "linear", "yarn", "longrope")

SECTIONS: Final = ("rope.dimension_sections", "rope.mrope_section", "mrope_sections")
"""Keys of the pairs that turn by time, row and column, of architectures that name them; the last ones are ollama's."""

ROPE_KEYS: Final = frozenset({_TYPE, _FACTOR, _OLD_FACTOR, _EXTRAPOLATION, *_SCALING})
"""The keys that are read here."""


def add_rope(
    prefix: str,
    entry: GgufArchitecture,
    values: Mapping[str, Any],
    config: dict[str, Any],
    factors: Mapping[str, list[float]],
) -> None:
    """Add the scaling of the rope as `config.json` spells it, if there is one.

    Raises:
        Unsupported: a scaling that is not implemented.
    """
    kind, factor = _kind(prefix, values)
    scaling = {theirs: values[ours] for ours, theirs in _SCALING.items() if ours in values}
    context = {"original_max_position_embeddings": config["max_position_embeddings"]}
    plain, long, short = (factors.get(name) for name in ROPE_FACTORS)
    if long is not None and short is not None:
        kind = "longrope"
    _refuse(prefix, values, kind)
    if kind == "longrope" and long is not None:
        held = {"factor": factor} if factor != 1 else {}
        longrope = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        scaling = {"attention_factor": 1.0, **held, **scaling, **longrope}
    elif plain is not None and kind == "none":
        scaling = {"rope_type": "factors", "factors": plain}
    elif kind == "linear" and plain is None:
        scaling = {"rope_type": kind, "factor": factor}
    elif kind == "yarn" and plain is None:
        scaling = {**context, **scaling, "factor": factor, "rope_type": kind, **entry.rope_fixed}
        _set_attention(prefix, values, factor, scaling)
    elif kind == "none":
        scaling = {}
    else:
        raise refusal(prefix, _TYPE, kind, "the tensors of its factors are missing, or of another type")
    if entry.log_multiplier is not None and kind == "yarn" and LOG_MULTIPLIER in values:
        mscale = round(values[LOG_MULTIPLIER] / entry.log_multiplier, 6)  # a float32 in the file
        scaling |= {"mscale": mscale, "mscale_all_dim": mscale}
    if values.get(TEMPERATURE):
        scaling = {**context, **scaling, "llama_4_scaling_beta": values[TEMPERATURE]}
    if entry.rope == "rope_parameters":
        scaling.setdefault("rope_type", "default")
        scaling["rope_theta"] = config["rope_theta"]
    if scaling:
        config[entry.rope] = scaling
    key = next((each for each in SECTIONS if each in values), None)
    if key is not None:
        config["mrope_section"] = _section(prefix, key, values[key])


def _section(prefix: str, key: str, found: Any) -> list[int]:
    """Return the pairs that turn by time, row and column. The fourth number, of other models, must be 0."""
    if not isinstance(found, list) or len(found) not in (3, 4) or any(found[3:]):
        raise refusal(prefix, key, found, "three numbers of pairs are read, and a fourth one of 0")
    return found[:3]


def _kind(prefix: str, values: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the type of the scaling and its factor."""
    factor = values.get(_FACTOR, values.get(_OLD_FACTOR, 1)) or 1
    kind = values.get(_TYPE, "linear")
    if kind not in _TYPES:
        raise refusal(prefix, _TYPE, kind, f"{', '.join(_TYPES)} are read")
    return ("none" if kind == "linear" and factor == 1 else str(kind)), factor


def _set_attention(prefix: str, values: Mapping[str, Any], factor: Any, scaling: dict[str, Any]) -> None:
    """Set YaRN's factor of q . k, which one key gives as it is and another, as in llama.cpp, by YaRN's.

    Older converters have written YaRN's itself into that other key.
    """
    attention = values.get(_ATTENTION)
    if attention is None or _YARN_ATTENTION in values:
        return
    if LOG_MULTIPLIER in values and attention != 1:
        raise refusal(prefix, _ATTENTION, attention, f"only 1 is read together with {LOG_MULTIPLIER}")
    own = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    scaling["attention_factor"] = own if math.isclose(attention, own, abs_tol=1e-3) else attention * own
    if LOG_MULTIPLIER in values:
        del scaling["attention_factor"]


def _refuse(prefix: str, values: Mapping[str, Any], kind: str) -> None:
    """Raise Unsupported for keys that are not implemented with this type."""
    if values.get(_EXTRAPOLATION, 1) not in (1, -1):
        raise refusal(prefix, _EXTRAPOLATION, values[_EXTRAPOLATION], "only 1 is read")
    for key in (_ATTENTION, _YARN_ATTENTION) if kind in ("none", "linear") else ():
        if values.get(key, 1) != 1:
            raise refusal(prefix, key, values[key], "a factor of q . k is read with yarn and longrope only")


def refusal(prefix: str, key: str, value: Any, reason: str) -> Unsupported:
    """Return the error of a key that is not implemented."""
    return Unsupported(f"GGUF metadata {prefix}.{key}={value!r}", reason)
