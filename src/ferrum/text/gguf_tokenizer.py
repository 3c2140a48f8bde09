"""Tokenizers in GGUF metadata, as the files of the Hugging Face layout: `tokenizer.json` and `tokenizer_config.json`.

Two kinds: `gpt2` (byte-level BPE with merges, and a rule that splits text first, named by `tokenizer.ggml.pre`) and
`llama` (SentencePiece BPE with scores and byte tokens). An unknown rule is refused, since a wrong one changes ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np

from ferrum.core.errors import CheckpointError, Unsupported

_SPACE: Final = "\u2581"
_HINT: Final = "name the original model's directory or hub id with --tokenizer DIR"


class TokenType(IntEnum):
    """The type of a token in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_ADDED: Final = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN})
"""Types of tokens that are matched before the vocabulary."""

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_CASELESS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2: Final = rf"{_CASELESS}|{_WORDS}|\p{{N}}|{_REST}"
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    r"\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    r"\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    r"\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    r"\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    r"\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    r"\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    r"\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    r"\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    r"\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)

_BEFORE: Final = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_MARKS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN: Final = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_MARKS}"
_GPT4O: Final = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CASELESS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CASELESS}?|\p{{N}}{{1,3}}|{_MARKS}"
)
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)

SPLITS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"), (_LLAMA3,)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), (_GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_QWEN2,)),
    "deepseek-llm": _DEEPSEEK_LLM,
}
"""Patterns of each split rule, applied one after the other; every match is one word."""

_IGNORE_MERGES: Final = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "tekken"})
"""Rules of vocabularies in which a word that is a token is never split."""

_BEGINNING: Final = frozenset({"llama"})
"""Kinds of tokenizers that put a begin token first unless the file says otherwise."""

_COMPOSED: Final = frozenset({"qwen2", "deepseek-r1-qwen"})
"""Rules of vocabularies whose text is put into Unicode's normal form C first."""


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a `tokenizer.json`, or None without a tokenizer.

    Raises:
        CheckpointError: the metadata is damaged.
        Unsupported: a kind of tokenizer or a split rule that is not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or kind == "no_vocab":
        return None
    tokens = _strings(metadata, "tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise CheckpointError("tokenizer.ggml.token_type must have a type for each token")
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if str(kind) not in builders:
        raise Unsupported(f"tokenizer.ggml.model={kind!r}", f"{' and '.join(builders)} are read; {_HINT}")
    parts = builders[str(kind)](metadata, tokens)
    added = [
        _added(token, index, special=kind != TokenType.USER_DEFINED)
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in _ADDED
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
        **parts,
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `tokenizer_config.json`: special tokens, flags and chat templates."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for name, key in names.items():
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            config[name] = tokens[index]
    begins = str(metadata.get("tokenizer.ggml.model")) in _BEGINNING
    config["add_bos_token"] = bool(metadata.get("tokenizer.ggml.add_bos_token", begins))
    config["add_eos_token"] = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    templates = {
        key.removeprefix("tokenizer.chat_template").removeprefix(".") or "default": value
        for key, value in metadata.items()
        if (key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template.")) and isinstance(value, str)
    }
    if templates:
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return config


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """Return the ids of tokens that end a text: end of sequence, of turn and of message."""
    found = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    return list(dict.fromkeys(each for each in found if isinstance(each, int)))


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    rule = str(metadata.get("tokenizer.ggml.pre"))
    if rule not in SPLITS:
        known = ", ".join(sorted(SPLITS))
        raise Unsupported(f"tokenizer.ggml.pre={rule!r}", f"known rules: {known}; {_HINT}")
    splits = [
        {"type": "Split", "pattern": {"Regex": _plain(pattern)}, "behavior": "Isolated", "invert": False}
        for pattern in SPLITS[rule]
    ]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if rule in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_only]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [_pair(line) for line in _strings(metadata, "merges")],
            "ignore_merges": rule in _IGNORE_MERGES,
        },
    }


def _plain(pattern: str) -> str:
    """Return a pattern with its escaped characters as themselves, since the library knows only short escapes."""
    return re.sub(r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})", lambda found: chr(int(found[1] or found[2], 16)), pattern)


def _sentence_piece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise CheckpointError("tokenizer.ggml.scores must have a number for each token")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    index = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE",
            "unk_token": tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": list(_merges(tokens, scores)),
        },
    }


def _pair(line: str) -> tuple[str, str]:
    """Return the parts of a merge, split at the first space that is not its first character, as llama.cpp does."""
    at = line.find(" ", 1)
    if at < 0:
        raise CheckpointError(f"tokenizer.ggml.merges: {line!r} must have two parts, separated by a space")
    return line[:at], line[at + 1 :]


def _merges(tokens: Sequence[str], scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that merge to a token, by falling score of the token: the order in which training merged them.

    Tokens of equal scores merge in the order of their ids. A token that holds a space is no merge: spaces of a text
    are replaced first, and user-defined tokens of spaces are matched before.
    """
    ranks = {token: index for index, token in enumerate(tokens) if " " not in token}
    for index in np.argsort(-np.asarray(scores, np.float64), kind="stable").tolist():
        token = tokens[index]
        held = [
            (left, right)
            for at in range(1, len(token))
            if (left := token[:at]) in ranks and (right := token[at:]) in ranks
        ]
        if len(held) > 1:
            held.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        yield from held


def _added(token: str, index: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": token, "special": special, **flags}


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not set(map(type, values)) <= {str}:
        raise CheckpointError(f"tokenizer.ggml.{key} must be a list of strings")
    return values


def as_json(value: object) -> bytes:
    """Return a value as the bytes of a JSON file."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
