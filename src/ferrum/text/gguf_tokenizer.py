"""Tokenizers in GGUF metadata, as the files of the Hugging Face layout: `tokenizer.json` and `tokenizer_config.json`.

Three kinds: `gpt2` (byte-level BPE with merges, and a rule that splits text first, named by `tokenizer.ggml.pre`),
`llama` (SentencePiece BPE with scores and byte tokens) and `gemma4` (the same with merges). An unknown rule is refused,
since a wrong one changes ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.text.fast_tokenizer import joined_merges
from ferrum.text.gguf_rules import DEFAULT, RULES
from ferrum.text.gguf_vocabulary import MARK, TokenType, Vocabulary, flag, read_vocabulary, strings

_SPACE: Final = "\u2581"
_HINT: Final = "name the original model's directory or hub id with --tokenizer DIR"


_NO_TOKENIZER: Final = (None, "no_vocab", "none")
"""Kinds of tokenizers of files that have none."""

_SPLIT: Final = frozenset({"gpt2"})
"""Kinds of tokenizers with a split rule."""

_BEGINS: Final = frozenset({"llama"})
"""Kinds of tokenizers that begin texts with the begin token unless the file says otherwise."""

_ALWAYS_BEGINS: Final = frozenset({"gemma4"})
"""Kinds that begin texts whatever the file says: some files of Gemma 4 say otherwise by mistake."""

_MAY_LACK_MERGES: Final = frozenset({"kimi-k2"})
"""Split rules of vocabularies whose files may lack merges."""

_ADDED: Final = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN})
"""Types of tokens that are matched before the vocabulary."""


def has_tokenizer(metadata: Mapping[str, Any]) -> bool:
    """Whether a file has a tokenizer."""
    return metadata.get("tokenizer.ggml.model") not in _NO_TOKENIZER


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a `tokenizer.json`, or None without a tokenizer.

    Raises:
        CheckpointError: the metadata is damaged.
        Unsupported: a kind of tokenizer or a split rule that is not known.
    """
    if not has_tokenizer(metadata):
        return None
    kind = _kind(metadata)
    builders = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _merged_pieces}
    if kind not in builders:
        raise Unsupported(f"tokenizer.ggml.model={kind!r}", f"{', '.join(builders)} are read; {_HINT}")
    vocabulary = read_vocabulary(metadata)
    parts = builders[kind](metadata, vocabulary)
    if vocabulary.marked:
        parts["decoder"] = {"type": "Sequence", "decoders": [_replace(MARK, ""), parts["decoder"]]}
    added = [
        _added(token, index, special=kind != TokenType.USER_DEFINED)
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
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
    config: dict[str, Any] = {}
    if has_tokenizer(metadata):
        vocabulary = read_vocabulary(metadata)
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        named = {name: vocabulary.named.get(key) for name, key in names.items()}
        config |= {name: vocabulary.tokens[index] for name, index in named.items() if index is not None}
    begins = flag(metadata, "add_bos_token", _begins(metadata))
    config["add_bos_token"] = begins or _kind(metadata) in _ALWAYS_BEGINS
    config["add_eos_token"] = flag(metadata, "add_eos_token", False)
    templates = {
        key.removeprefix("tokenizer.chat_template").removeprefix(".") or "default": value
        for key, value in metadata.items()
        if (key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template.")) and isinstance(value, str)
    }
    if templates:
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return config


def special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of the begin token and of the tokens that end an answer, as a `config.json` names them."""
    if not has_tokenizer(metadata):
        return {}
    vocabulary = read_vocabulary(metadata)
    return {"bos_token_id": vocabulary.named.get("bos"), "eos_token_id": vocabulary.ends or None}


def _begins(metadata: Mapping[str, Any]) -> bool:
    """Whether texts begin with the begin token in a file that does not say so."""
    rule = RULES.get(str(metadata.get("tokenizer.ggml.pre", DEFAULT)))
    kind = _kind(metadata)
    return kind in _BEGINS or (kind in _SPLIT and rule is not None and rule.begins)


def _kind(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("tokenizer.ggml.model"))


def _byte_level(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the parts of a byte-level BPE with merges. A file without a rule has the default one, as in llama.cpp."""
    name = str(metadata.get("tokenizer.ggml.pre", DEFAULT))
    if name not in RULES:
        raise Unsupported(f"tokenizer.ggml.pre={name!r}", f"known rules: {', '.join(sorted(RULES))}; {_HINT}")
    if name == DEFAULT:
        warn_once(f"the GGUF file has no split rule (tokenizer.ggml.pre): its ids may be worse; {_HINT}")
    rule = RULES[name]
    splits = [
        {"type": "Split", "pattern": {"Regex": _plain(pattern)}, "behavior": "Isolated", "invert": False}
        for pattern in rule.patterns
    ]
    merges = _file_merges(metadata)
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if rule.composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_only]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(vocabulary.tokens)},
            "merges": joined_merges(merges) or merges,
            "ignore_merges": rule.whole,
        },
    }


def _plain(pattern: str) -> str:
    """Return a pattern with its escaped characters as themselves, since the library knows only short escapes."""
    return re.sub(r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})", lambda found: chr(int(found[1] or found[2], 16)), pattern)


def _sentence_piece(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the parts of a SentencePiece BPE, whose merges follow from the scores of its tokens."""
    tokens = vocabulary.tokens
    scores = metadata.get("tokenizer.ggml.scores", [0.0] * len(tokens))
    if not isinstance(scores, list) or len(scores) < len(tokens) or not set(map(type, scores)) <= {int, float}:
        raise CheckpointError("tokenizer.ggml.scores must have a number for each token")
    merges = list(_merges(tokens, scores[: len(tokens)]))
    return _pieces(vocabulary, merges, prefixed=flag(metadata, "add_space_prefix", True))


def _merged_pieces(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the parts of Gemma 4's BPE: the pieces of a SentencePiece vocabulary, with the merges of the file."""
    return _pieces(vocabulary, _file_merges(metadata), prefixed=False)


def _pieces(vocabulary: Vocabulary, merges: list[tuple[str, str]], *, prefixed: bool) -> dict[str, Any]:
    """Return the parts of a BPE over pieces that spell a space as U+2581, with byte tokens."""
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    unknown = vocabulary.named.get("unknown")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, _replace(" ", _SPACE)]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [_replace(_SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            "type": "BPE",
            "unk_token": None if unknown is None else vocabulary.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: index for index, token in enumerate(vocabulary.tokens)},
            "merges": joined_merges(merges) or merges,
        },
    }


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _file_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the merges of the file. Kimi-K2's may have none."""
    if str(metadata.get("tokenizer.ggml.pre")) in _MAY_LACK_MERGES and "tokenizer.ggml.merges" not in metadata:
        return []
    return [_pair(line) for line in strings(metadata, "merges")]


def _pair(line: str) -> tuple[str, str]:
    """Return the parts of a merge, split at the first space that is not its first character, as llama.cpp does."""
    at = line.find(" ", 1)
    if at < 0:
        raise CheckpointError(f"tokenizer.ggml.merges: {line!r} must have two parts, separated by a space")
    return line[:at], line[at + 1 :]


def _merges(tokens: Sequence[str], scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that merge to a token, by falling score of the token: the order in which training merged them.

    Tokens of equal scores merge in the order of their ids. A token that holds a space is no merge: spaces of a text
    are replaced first, and user-defined tokens of spaces are matched before. Nor is one that another repeats.
    """
    ranks = {token: index for index, token in enumerate(tokens) if " " not in token and token[:1] != MARK}
    for index in sorted(range(len(tokens)), key=lambda index: -scores[index]):
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


def as_json(value: object) -> bytes:
    """Return a value as the bytes of a JSON file."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
