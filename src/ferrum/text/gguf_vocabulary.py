"""The vocabulary in GGUF metadata: types of tokens, special tokens by their keys and by their texts.

Sources: the specification of the format, and src/llama-vocab.cpp of llama.cpp for defaults and texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from ferrum.core.errors import CheckpointError


class TokenType(IntEnum):
    """The type of a token in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


TURN_ENDS: Final = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),  # Llama 3
        "<|eom|>",  # Llama 4, by the published generation_config.json; llama.cpp does not end at it
        *("<|im_end|>", "<|endoftext|>", "<|end|>", "<end_of_turn>"),  # Qwen, Phi-3, Gemma
        *("<eos>", "<turn|>", "<|tool_response>"),  # Gemma 4
        *("<|return|>", "<|call|>"),  # gpt-oss
        *("<|flush|>", "<|calls|>"),  # Solar
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["),  # DeepSeek Coder, Kimi-K2, MiniMax-M2
        *("<end_of_utterance>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),  # SmolVLM, Mistral, DeepSeek
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),  # ends of infill, as the next two lines
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
        "<|file_sep|>",
    }
)
"""Texts of the tokens that end an answer, whatever else the metadata names: those of llama.cpp, and of Llama 4."""

_SPARED: Final = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),  # ends a message of gpt-oss, not its turn
    ({"<|flush|>", "<|call|>"}, "<|end|>"),
    ({"<|flush|>", "<|calls|>"}, "<|end|>"),
    ({"<|return|>", "<|calls|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),  # a tag of HTML in Gemma 4
)
"""Texts that end no answer in a vocabulary that also has the others."""

_TAG: Final = "</s>"
"""An end that is a tag of HTML in Gemma's vocabularies: it only ends an answer as a control token."""

_KEYS: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""Keys of tokens that end an answer."""

_DEFAULTS: Final = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "gpt2": {"bos": 11, "eos": 11},  # Falcon's end of text
}
"""Ids of special tokens by kind of tokenizer, for files that name none."""

_FIRST: Final = frozenset({"llama"})
"""Kinds whose special tokens are the first ones; in other kinds a default counts if it is a control token."""

MARK: Final = "\U0010ffff"
"""Precedes a text that a later token has, too: a character that no text holds and that decoding drops."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file.

    Attributes:
        tokens: texts by id, each once: one that a later token repeats begins with `MARK`, an empty one is "[EMPTY_id]".
        types: by id.
        marked: whether a text begins with `MARK`.
        named: ids of special tokens by key, such as `bos`.
        ends: ids of the tokens that end an answer, those with keys first.
    """

    tokens: Sequence[str]
    types: Sequence[int]
    marked: bool
    named: Mapping[str, int]
    ends: Sequence[int]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary of some metadata. Raises CheckpointError if it is damaged."""
    texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(strings(metadata, "tokens"))]
    types = _types(metadata, len(texts))
    named = _named(metadata, texts, types)
    ends = _ends(texts, types, named)
    for index in ends:
        if texts[index] in TURN_ENDS:  # files often forget that these are control tokens
            types[index] = TokenType.CONTROL
    tokens = _once(texts)
    return Vocabulary(tokens, types, tokens is not texts, named, ends)


def strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    """Return a list of strings of the tokenizer. Raises CheckpointError."""
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not set(map(type, values)) <= {str}:
        raise CheckpointError(f"tokenizer.ggml.{key} must be a list of strings")
    return values


def flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return a flag of the tokenizer. Raises CheckpointError."""
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise CheckpointError(f"tokenizer.ggml.{key} must be true or false, not {value!r}")
    return value


def _types(metadata: Mapping[str, Any], count: int) -> list[int]:
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [TokenType.NORMAL] * count
    if not isinstance(types, list) or len(types) < count or not set(map(type, types)) <= {int}:
        raise CheckpointError("tokenizer.ggml.token_type must have a number for each token")
    return types[:count]


def _named(metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Return ids by key. Those that are out of range count as absent, as in llama.cpp."""
    kind = str(metadata.get("tokenizer.ggml.model"))
    indices = {
        key: index
        for key, index in _DEFAULTS.get(kind, {}).items()
        if index < len(texts) and (kind in _FIRST or types[index] == TokenType.CONTROL)
    }
    for key in ("bos", *_KEYS, "unknown", "padding"):
        value = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise CheckpointError(f"tokenizer.ggml.{key}_token_id must be a token id, not {value!r}")
        if value is not None and 0 <= value < len(texts):
            indices[key] = value
    return indices


def _ends(texts: Sequence[str], types: Sequence[int], named: Mapping[str, int]) -> list[int]:
    """Return the tokens that end an answer."""
    known = [index for index, text in enumerate(texts) if text in TURN_ENDS]
    by_text = [index for index in known if texts[index] != _TAG or types[index] == TokenType.CONTROL]
    ends = list(dict.fromkeys((*(named[key] for key in _KEYS if key in named), *by_text)))
    held = {texts[index] for index in ends}
    spared = {text for others, text in _SPARED if others <= held}
    return [index for index in ends if texts[index] not in spared]


def _once(texts: list[str]) -> list[str]:
    """Return texts without repeats: the last token of a text keeps it, as the one that llama.cpp encodes to."""
    left = Counter(texts)
    if len(left) == len(texts):
        return texts
    once = []
    for text in texts:
        left[text] -= 1
        once.append(MARK * left[text] + text)
    return once
