"""The sampling that a GGUF file recommends, as the `generation_config.json` of the model's directory."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

_PREFIX: Final = "general.sampling."
_NAMES: Final = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""Names of the format that differ from those of `generation_config.json`."""


_SUPPRESSED: Final = "tokenizer.ggml.suppress_tokens"


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a `generation_config.json`, or None if the file recommends nothing.

    Keys that `generation_config.json` does not have, such as `mirostat`, keep their names: the reader ignores them.
    """
    own = {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}
    suppressed = metadata.get(_SUPPRESSED)
    named = {_NAMES.get(key, key): _written(value) for key, value in own.items()}
    return (named | {"suppress_tokens": suppressed} if suppressed else named) or None


def _written(value: Any) -> Any:
    """Return a number as its author wrote it: 0.95, not the nearest number of 32 bits."""
    if not isinstance(value, float):
        return value
    with suppress(OverflowError):
        for digits in range(1, 10):
            short = float(f"{value:.{digits}g}")
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
    return value
