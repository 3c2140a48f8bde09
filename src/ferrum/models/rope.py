"""Rotary position embeddings: from a checkpoint's parameters to frequencies and a factor, once, at load.

Angles never depend on a call. The dynamic NTK variant, whose authors stretch the base as the text grows, is frozen for
the configured context, so that a token's angle is the same whatever comes after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.config_reader import MOST, FamilyConfig
from ferrum.models.spec import RopeSpec

_CONTEXT = ("max_position_embeddings", 2048)
_DEFAULT_THETA = 10000.0

_LARGEST = 1e29
"""Frequency, or scaling: times any position it is still a number of float32, in which kernels have it."""


def rope_spec(config: FamilyConfig, head_dim: int) -> RopeSpec:
    """The rope of a checkpoint, in either spelling: `rope_parameters`, or `rope_theta` beside `rope_scaling`."""
    section, kind = _section(config)
    if any(isinstance(value, Mapping) for value in section.values.values()):
        raise Unsupported("a rope for each kind of layer", "only one for all layers is implemented for this family")
    theta = section.number("rope_theta", config.number("rope_theta", _DEFAULT_THETA))
    variant = _VARIANTS.get(kind) if isinstance(kind, str) else None
    if variant is None:
        raise Unsupported(f"rope type {kind!r}", f"known: {', '.join(sorted(_VARIANTS))}")
    for each in (section, config):
        each.only("partial_rotary_factor", 1, 1)
    if head_dim % 2:
        raise CheckpointError(f"config.json: rope rotates pairs, so head_dim must be even, not {head_dim}")
    try:
        rope = variant(_Rope(section, config, theta, head_dim))
    except (ArithmeticError, ValueError) as error:
        raise CheckpointError(f"config.json: the numbers of the rope {kind!r} give no angles: {error}") from error
    if not all(number <= _LARGEST for number in (*rope.frequencies, rope.scaling)):
        raise CheckpointError(f"config.json: the numbers of the rope {kind!r} give angles that are not finite")
    return rope


def context_length(config: FamilyConfig) -> int:
    """Most tokens of a sequence: the checkpoint's own number, but for ropes that reach further.

    YaRN reaches as far as it stretches the context that it names; authors have users add it and leave the number as it
    was. Dynamic scaling reaches as far as the user configured. Of linear scaling some name the reach beside that
    number (Vicuna's 16k).
    """
    own = config.integer(*_CONTEXT)
    section, kind = _section(config)
    if kind == "linear":
        return max(own, config.integer("max_sequence_length", own))
    if kind == "yarn" and any("original_max_position_embeddings" in each.values for each in (section, config)):
        return max(own, int(min(_trained(config, section) * section.number("factor", 1.0), MOST)))
    return max(own, config.context) if kind == "dynamic" and config.context else own


def _section(config: FamilyConfig) -> tuple[FamilyConfig, Any]:
    """What the checkpoint says of its rope, and the kind that it names."""
    section = config.section("rope_scaling") or config.section("rope_parameters") or FamilyConfig({}, config.context)
    return section, section.values.get("rope_type", section.values.get("type", "default"))


def _trained(config: FamilyConfig, section: FamilyConfig) -> int:
    """The context before scaling; a value beside the section wins over one inside, as `transformers` has it."""
    inside = section.integer("original_max_position_embeddings", config.integer(*_CONTEXT))
    return config.integer("original_max_position_embeddings", inside)


@dataclass(frozen=True, slots=True)
class _Rope:
    """What a variant is made from: its section of the configuration, the whole, the base, the dimensions rotated."""

    section: FamilyConfig
    config: FamilyConfig
    theta: float
    rotated: int

    def plain(self, theta: float | None = None) -> list[float]:
        """Su et al. 2021, section 3.2.2: theta^(-2i/d)."""
        base = self.theta if theta is None else theta
        return [base ** -(2 * i / self.rotated) for i in range(self.rotated // 2)]

    def trained(self) -> int:
        """See `_trained`."""
        return _trained(self.config, self.section)


def _default(rope: _Rope) -> RopeSpec:
    return RopeSpec(tuple(rope.plain()))


def _linear(rope: _Rope) -> RopeSpec:
    """Position interpolation (Chen et al. 2023)."""
    factor = rope.section.number("factor")
    return RopeSpec(tuple(f / factor for f in rope.plain()))


def _dynamic(rope: _Rope) -> RopeSpec:
    """NTK-aware scaling of the base, for a text of the configured context's length."""
    factor, trained = rope.section.number("factor"), rope.config.integer(*_CONTEXT)
    if rope.rotated == 2:
        raise CheckpointError("config.json: dynamic rope needs more than two rotated dimensions")
    length = max(rope.config.context or trained, trained)
    d = rope.rotated
    stretched = rope.theta * (factor * length / trained - (factor - 1)) ** (d / (d - 2))
    return RopeSpec(tuple(rope.plain(stretched)))


def _llama3(rope: _Rope) -> RopeSpec:
    """Llama 3.1: long wavelengths are interpolated, short ones kept, those between blended."""
    factor = rope.section.number("factor")
    low, high = rope.section.number("low_freq_factor"), rope.section.number("high_freq_factor")
    trained = rope.trained()

    def scaled(frequency: float) -> float:
        turns = trained * frequency / (2 * math.pi)  # over the context the model was first trained on
        if turns < low:
            return frequency / factor
        if turns > high:
            return frequency
        blend = (turns - low) / (high - low)
        return (1 - blend) * frequency / factor + blend * frequency

    return RopeSpec(tuple(scaled(f) for f in rope.plain()))


def _yarn(rope: _Rope) -> RopeSpec:
    """YaRN (Peng et al. 2023), sections 3.2 to 3.4: a ramp between interpolating and keeping a dimension."""
    trained = rope.trained()
    factor = rope.section.number("factor", rope.config.integer(*_CONTEXT) / trained)

    def dimension(turns: float) -> float:
        return rope.rotated * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.section.number("beta_fast", 32.0)), dimension(rope.section.number("beta_slow", 1.0))
    # What `transformers` makes of null; absence means true.
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
    """The attention temperature, folded into cos and sin; DeepSeek's two scales where both are given."""
    given = section.values.get("attention_factor")
    if given is not None:
        return section.number("attention_factor")

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if section.values.get("mscale") and section.values.get("mscale_all_dim"):
        return mscale(section.number("mscale")) / mscale(section.number("mscale_all_dim"))
    return mscale(1.0)


_VARIANTS: dict[str, Callable[[_Rope], RopeSpec]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
