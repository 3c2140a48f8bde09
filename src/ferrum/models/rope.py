"""Rotary position embeddings: conversion of a checkpoint's parameters to frequencies and a scaling factor, at load.

The dynamic NTK variant grows its base with the text in the original. Here the base is fixed for the configured context,
so that later tokens do not change the angle of a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.reference.double_math import logarithm, power
from ferrum.models.attention_spec import RopeSpec
from ferrum.models.config_reader import MAX_INTEGER, FamilyConfig

_CONTEXT = "max_position_embeddings"
_FULL = "full_attention"
_KINDS = ("sliding_attention", _FULL)

_OTHER_NAMES = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}
"""Rope types by names of other libraries. The three positions of `mrope` are equal in text."""

_WHOLE_HEADS = ("proportional",)
"""Rope types of all pairs of a head, whatever share of them is rotated."""

_LARGEST = 1e29
"""Limit of a frequency or scaling: its product with any position must fit in float32."""


def rope_spec(config: FamilyConfig, head_dim: int, *, partial: bool = False, interleaved: bool = False) -> RopeSpec:
    """Return the rope of a checkpoint, from `rope_parameters` or from `rope_theta` and `rope_scaling`.

    Args:
        config: of the checkpoint.
        head_dim: numbers of a head.
        partial: the family can rotate a part of each head.
        interleaved: the family's pairs are adjacent.
    """
    section, kind = rope_section(config)
    if any(isinstance(value, Mapping) for value in section.values.values()):
        raise Unsupported("a rope per kind of layer", "this family implements one rope for all layers")
    theta = section.number("rope_theta", config.values.get("rope_theta"))
    variant = _VARIANTS.get(kind)
    if variant is None:
        raise Unsupported(f"rope type {kind!r}", f"known: {', '.join(sorted({*_VARIANTS, *_OTHER_NAMES}))}")
    for each in (section, config):
        if not partial:
            each.require("partial_rotary_factor", 1, 1)
    share = section.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) if partial else 1.0
    rotated = head_dim if kind in _WHOLE_HEADS else int(head_dim * min(share, 1.0))
    if rotated % 2:
        raise CheckpointError(f"config.json: head_dim must be even for rope, got {rotated}")
    try:
        rope = variant(_Rope(section, config, theta, rotated, share))
    except (ArithmeticError, ValueError) as error:
        raise CheckpointError(f"config.json: invalid parameters of rope {kind!r}: {error}") from error
    if not all(number <= _LARGEST for number in (*rope.frequencies, rope.scaling)):
        raise CheckpointError(f"config.json: invalid parameters of rope {kind!r}: angles are not finite")
    return replace(rope, interleaved=interleaved)


def with_axes(rope: RopeSpec, config: FamilyConfig, default: tuple[int, int, int] | None = None) -> RopeSpec:
    """Return the rope with `mrope_section`: how many pairs turn by time, row and column, one after another in turns.

    Pair i turns by i mod 3, and those beyond the pairs of rows and of columns by time.

    Args:
        default: the section of a configuration without one; None: all pairs turn by the position.
    """
    found = rope_section(config)[0].values.get("mrope_section", config.values.get("mrope_section", default))
    if found is None:
        return rope
    if not isinstance(found, list | tuple) or len(found) != 3 or not all(type(each) is int for each in found):
        raise CheckpointError(f"config.json: mrope_section must be three integers, got {found!r}")
    turns = (index % 3 if index < 3 * found[index % 3] else 0 for index in range(len(rope.frequencies)))
    return replace(rope, axes=tuple(turns))


def context_length(config: FamilyConfig) -> int:
    """Return the maximum tokens of a sequence: `max_position_embeddings`, or more with rope scaling.

    YaRN extends its original context by its factor; users often add it without changing `max_position_embeddings`.
    Dynamic scaling extends to the configured context. Linear scaling may name the extended context separately (the 16k
    of Vicuna).
    """
    base = config.integer(_CONTEXT)
    whole = rope_section(config)[0].values.get(_FULL)
    section, kind = rope_section(config.with_values(rope_scaling=whole) if isinstance(whole, Mapping) else config)
    if kind == "linear":
        return max(base, config.integer("max_sequence_length", base))
    if kind == "yarn" and any("original_max_position_embeddings" in each.values for each in (section, config)):
        return max(base, int(min(_trained(config, section) * section.number("factor", 1.0), MAX_INTEGER)))
    return max(base, config.context) if kind == "dynamic" and config.context else base


def rope_section(config: FamilyConfig) -> tuple[FamilyConfig, str]:
    """Return the rope section of a configuration, and the rope type."""
    section = config.section("rope_scaling") or config.section("rope_parameters") or FamilyConfig({}, config.context)
    kind = str(section.values.get("rope_type") or section.values.get("type") or "default")
    return section, _OTHER_NAMES.get(kind, kind)


def of_layers(config: FamilyConfig, kind: str, theta: str = "rope_theta") -> FamilyConfig:
    """Return a configuration with the rope of one kind of layer, in families with a rope for each.

    It is that kind's in `rope_parameters`. In older files `rope_scaling` is the scaling of full layers alone.

    Args:
        config: of the checkpoint.
        kind: of the layers.
        theta: the field of the base, unless `rope_parameters` has it.
    """
    parameters = config.values.get("rope_parameters") or {}
    if parameters and not any(isinstance(parameters, Mapping) and each in parameters for each in _KINDS):
        raise Unsupported(
            f"config.json: rope_parameters without {' and '.join(_KINDS)}", "this family has a rope per kind of layer"
        )
    empty = FamilyConfig({})
    scaling = config.section("rope_scaling") if kind == _FULL else None
    own = {**(FamilyConfig(parameters).section(kind) or empty).values, **(scaling or empty).values}
    own.setdefault("rope_theta", config.values.get(theta))
    return config.with_values(rope_parameters=own, rope_scaling=None)


def _trained(config: FamilyConfig, section: FamilyConfig) -> int:
    """Return the context before scaling. As in `transformers`, the top-level field wins over the section's."""
    inside = section.integer("original_max_position_embeddings", config.integer(_CONTEXT))
    return config.integer("original_max_position_embeddings", inside)


@dataclass(frozen=True, slots=True)
class _Rope:
    """Inputs of a rope variant: its section, the whole configuration, the base, rotated dimensions, share of heads."""

    section: FamilyConfig
    config: FamilyConfig
    theta: float
    rotated: int
    share: float = 1.0

    def plain(self, theta: float | None = None) -> list[float]:
        """Return the frequencies theta^(-2i/d) (Su et al. 2021, section 3.2.2)."""
        base = self.theta if theta is None else theta
        return [power(base, -(2 * i / self.rotated)) for i in range(self.rotated // 2)]

    def trained(self) -> int:
        """Return the context before scaling."""
        return _trained(self.config, self.section)


def _default(rope: _Rope) -> RopeSpec:
    return RopeSpec(tuple(rope.plain()))


def _linear(rope: _Rope) -> RopeSpec:
    """Interpolate positions (Chen et al. 2023)."""
    factor = rope.section.number("factor")
    return RopeSpec(tuple(f / factor for f in rope.plain()))


def _dynamic(rope: _Rope) -> RopeSpec:
    """Scale the base (NTK-aware) for a text as long as the configured context, or by a fixed `alpha`."""
    if rope.section.values.get("alpha") and rope.rotated > 2:
        grown = power(rope.section.number("alpha"), rope.rotated / (rope.rotated - 2))
        return RopeSpec(tuple(rope.plain(rope.theta * grown)))
    factor, trained = rope.section.number("factor"), rope.config.integer(_CONTEXT)
    if rope.rotated == 2:
        raise CheckpointError("config.json: dynamic rope needs a head_dim above 2, got 2")
    length = max(rope.config.context or trained, trained)
    d = rope.rotated
    stretched = rope.theta * power(factor * length / trained - (factor - 1), d / (d - 2))
    return RopeSpec(tuple(rope.plain(stretched)))


def _llama3(rope: _Rope) -> RopeSpec:
    """Interpolate long wavelengths, keep short ones, blend those between (Llama 3.1)."""
    factor = rope.section.number("factor")
    low, high = rope.section.number("low_freq_factor"), rope.section.number("high_freq_factor")
    trained = rope.trained()

    def scaled(frequency: float) -> float:
        turns = trained * frequency / (2 * math.pi)  # over the original context
        if turns < low:
            return frequency / factor
        if turns > high:
            return frequency
        blend = (turns - low) / (high - low)
        return (1 - blend) * frequency / factor + blend * frequency

    return RopeSpec(tuple(scaled(f) for f in rope.plain()))


def _yarn(rope: _Rope) -> RopeSpec:
    """Ramp between interpolating and keeping a dimension: YaRN (Peng et al. 2023), sections 3.2 to 3.4."""
    trained = rope.trained()
    factor = rope.section.number("factor", rope.config.integer(_CONTEXT) / trained)

    def dimension(turns: float) -> float:
        return rope.rotated * logarithm(trained / (turns * 2 * math.pi)) / (2 * logarithm(rope.theta))

    fast, slow = (rope.section.optional_number(name) for name in ("beta_fast", "beta_slow"))
    low, high = dimension(fast or 32.0), dimension(slow or 1.0)
    # As in `transformers`: null means false, absence means true.
    if rope.section.flag("truncate", "truncate" not in rope.section.values):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotated - 1)
    width = high - low if high != low else 0.001

    def scaled(i: int, frequency: float) -> float:
        interpolated = min(max((i - low) / width, 0.0), 1.0)
        return frequency / factor * interpolated + frequency * (1 - interpolated)

    frequencies = tuple(scaled(i, f) for i, f in enumerate(rope.plain()))
    return RopeSpec(frequencies, _yarn_scaling(rope.section, factor))


def _yarn_scaling(section: FamilyConfig, factor: float) -> float:
    """Return the attention temperature as a factor of cos and sin, from DeepSeek's two scales if both are set."""
    given = section.values.get("attention_factor")
    if given is not None:
        return section.number("attention_factor")

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * logarithm(factor) + 1.0

    if section.values.get("mscale") and section.values.get("mscale_all_dim"):
        return mscale(section.number("mscale")) / mscale(section.number("mscale_all_dim"))
    return mscale(1.0)


def _longrope(rope: _Rope) -> RopeSpec:
    """Divide frequencies by one of two lists, chosen by the configured context (Ding et al. 2024).

    `transformers` chooses by the length of the text, which changes earlier tokens. Here a context beyond that of the
    training takes the long list for every text, a shorter one the short list.
    """
    trained, most = rope.trained(), rope.config.integer(_CONTEXT)
    name = "long_factor" if (rope.config.context or most) > trained else "short_factor"
    factor = rope.section.number("factor", most / trained)
    scaling = 1.0 if factor <= 1 else math.sqrt(1 + logarithm(factor) / logarithm(trained))
    divided = _divided(rope, name).frequencies
    return RopeSpec(divided, rope.section.number("attention_factor", scaling))


def _proportional(rope: _Rope) -> RopeSpec:
    """Rotate the first pairs of a head as if all were rotated; the other pairs have the frequency 0 (Gemma 4)."""
    pairs, factor = int(rope.share * rope.rotated // 2), rope.section.number("factor", 1.0)
    return RopeSpec(tuple(f / factor if i < pairs else 0.0 for i, f in enumerate(rope.plain())))


def _factors(rope: _Rope) -> RopeSpec:
    """Divide each frequency by its factor, as GGUF files carry the scaling of Llama 3.1."""
    return _divided(rope, "factors")


def _divided(rope: _Rope, name: str) -> RopeSpec:
    """Return the frequencies divided by the numbers of a list."""
    factors = rope.section.values.get(name)
    plain = rope.plain()
    if not isinstance(factors, list) or len(factors) != len(plain):
        raise CheckpointError(f"config.json: {name} must be {len(plain)} numbers")
    return RopeSpec(tuple(f / factor for f, factor in zip(plain, factors, strict=True)))


_VARIANTS: dict[str, Callable[[_Rope], RopeSpec]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
    "factors": _factors,
}
