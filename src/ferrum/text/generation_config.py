"""Generation defaults of a checkpoint: end tokens and recommended sampling.

Read from `generation_config.json`, with token ids from `config.json` as a fallback.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ferrum.core.errors import CheckpointError, RequestError
from ferrum.core.params import SamplingParams
from ferrum.text.model_files import ModelFiles, read_json_object
from ferrum.text.text_config import text_config

_CONFIG: Final = "generation_config.json"
_MODEL: Final = "config.json"
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
"""Names in the file, and the fields of `SamplingParams` that they set."""

_TOKENS: Final = ("eos_token_id", "bos_token_id", "pad_token_id")
_READ: Final = {*_SAMPLING, *_TOKENS, "do_sample"}
_BOOKKEEPING: Final = {
    *("transformers_version", "_from_model_config"),
    *("use_cache", "output_attentions", "output_hidden_states"),  # transformers 5 always writes these
}


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """A checkpoint's defaults for generation.

    Attributes:
        eos_token_ids: tokens that end a text, in file order, without repeats.
        bos_token_id, pad_token_id: None if the file has none, or -1.
        sampling: recommended fields of `SamplingParams`. `do_sample: false` sets temperature 0; without `do_sample`,
            the file's temperature counts.
        ignored: names of entries that have no effect here, for a log line; null entries are excluded.
    """

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    sampling: Mapping[str, float | int] = field(default_factory=lambda: MappingProxyType({}))
    ignored: tuple[str, ...] = ()


def load_generation_config(files: ModelFiles, *, recommended: bool = True) -> GenerationConfig:
    """Read `generation_config.json`; token ids that it omits come from `config.json`.

    Args:
        files: of the model.
        recommended: read the recommended sampling; otherwise ignore it.

    Raises:
        CheckpointError: a file is damaged or an entry is invalid; the message names both.
    """
    path, model_path = files.where(_CONFIG), files.where(_MODEL)
    raw = read_json_object(files, _CONFIG) or {}
    model = text_config(read_json_object(files, _MODEL) or {})
    ids = {
        name: _token_ids(path, name, raw[name])
        if raw.get(name) is not None
        else _token_ids(model_path, name, model.get(name))
        for name in _TOKENS
    }
    return GenerationConfig(
        eos_token_ids=ids["eos_token_id"],
        bos_token_id=next(iter(ids["bos_token_id"]), None),
        pad_token_id=next(iter(ids["pad_token_id"]), None),
        sampling=MappingProxyType(_sampling(path, raw) if recommended else {}),
        ignored=tuple(name for name in raw if raw[name] is not None and name not in _READ | _BOOKKEEPING),
    )


def _token_ids(path: str, name: str, value: object) -> tuple[int, ...]:
    values: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    for entry in values:
        if isinstance(entry, bool) or not isinstance(entry, int) or entry < -1:
            raise CheckpointError(f"{path}: {name} must be a token id or a list of them, not {value!r}")
    return tuple(dict.fromkeys(entry for entry in values if entry != -1))


def _sampling(path: str, raw: Mapping[str, Any]) -> dict[str, float | int]:
    defaults = {ours: raw[theirs] for theirs, ours in _SAMPLING.items() if raw.get(theirs) is not None}
    do_sample = raw.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise CheckpointError(f"{path}: do_sample must be true or false, not {do_sample!r}")
    if do_sample is False:
        defaults["temperature"] = 0
    try:
        SamplingParams(**{"max_tokens": None, **defaults})
    except RequestError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return defaults


# ---- The sampling that a GGUF file recommends, as the `generation_config.json` of the model's directory ----

_GGUF_PREFIX: Final = "general.sampling."
_GGUF_NAMES: Final = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""Names of the format that differ from those of `generation_config.json`."""


_SUPPRESSED: Final = "tokenizer.ggml.suppress_tokens"


def gguf_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a `generation_config.json`, or None if the file recommends nothing.

    Keys that `generation_config.json` does not have, such as `mirostat`, keep their names: the reader ignores them.
    """
    own = {key.removeprefix(_GGUF_PREFIX): value for key, value in metadata.items() if key.startswith(_GGUF_PREFIX)}
    suppressed = metadata.get(_SUPPRESSED)
    named = {_GGUF_NAMES.get(key, key): _written(value) for key, value in own.items()}
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
