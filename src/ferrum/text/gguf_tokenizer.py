"""Tokenizers in GGUF metadata, as the files of the Hugging Face layout: `tokenizer.json` and `tokenizer_config.json`.

Three kinds: `gpt2` (byte-level BPE with merges, and a rule that splits text first, named by `tokenizer.ggml.pre`),
`llama` (SentencePiece BPE with scores and byte tokens) and `gemma4` (the same with merges). An unknown rule is refused,
since a wrong one changes ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.logging import warn_once
from ferrum.text.fast_tokenizer import joined_merges
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
        pairs = [
            (left, right)
            for at in range(1, len(token))
            if (left := token[:at]) in ranks and (right := token[at:]) in ranks
        ]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        yield from pairs


def _added(token: str, index: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": token, "special": special, **flags}


def as_json(value: object) -> bytes:
    """Return a value as the bytes of a JSON file."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# ---- Split rules of byte-level vocabularies, by the name that `tokenizer.ggml.pre` gives them ----
#
# The names and their flags are those of llama.cpp (src/llama-vocab.cpp); the patterns are those of the models'
# `tokenizer.json` files, which llama.cpp quotes where its regular expressions cannot spell them.


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How a vocabulary's text becomes words.

    Attributes:
        patterns: applied one after the other; every match is one word.
        whole: a word that is a token is never split (`ignore_merges`).
        begins: texts begin with the begin token unless the file says otherwise.
        composed: text is put into Unicode's normal form C first.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    begins: bool = False
    composed: bool = False


_CASELESS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE: Final = r"[^\r\n\p{L}\p{N}]?"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST: Final = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_MARKS: Final = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NOT_HAN: Final = r"&&[^\p{Han}]]"
_PUNCTUATED: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)


def _cased(upper: str, lower: str, end: str) -> str:
    """Return the pattern of words that begin with capitals or end in small letters."""
    return rf"{_BEFORE}{upper}*{lower}+{end}|{_BEFORE}{upper}+{lower}*{end}"


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_CASELESS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2: Final = rf"{_CASELESS}|{_BEFORE}\p{{L}}+|\p{{N}}|{_REST}"
_QWEN35: Final = rf"{_CASELESS}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED: Final = rf"{_CASELESS}|{_BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING: Final = (
    rf"'(?i:[sdmt]|ll|ve|re)|{_BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_TEKKEN: Final = rf"{_cased(_UPPER, _LOWER, '')}|\p{{N}}|{_MARKS}"
_GPT4O: Final = rf"{_cased(_UPPER, _LOWER, _CASELESS + '?')}|\p{{N}}{{1,3}}|{_MARKS}"
_KIMI: Final = (
    rf"[\p{{Han}}]+|{_cased(_UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN, _CASELESS + '?')}|\p{{N}}{{1,3}}|{_REST}"
)
_EXAONE_MOE: Final = (
    rf"{_CASELESS}|{_BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEFAULT: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_FALCON: Final = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_HAN: Final = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CJK: Final = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
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
    _HAN,
    r"\p{N}+",
)
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")
_DEEPSEEK3: Final = (r"\p{N}{1,3}", _CJK, rf"{_PUNCTUATED}[\r\n]*|{_SPACES}")
_YOUTU: Final = (
    r"[\uac00-\ud7a3\u3131-\u318e]+"
    r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    rf"|[\u3105-\u312f]+|{_CJK}",
    rf"{_cased(_UPPER, _LOWER, _CASELESS + '?')}|\p{{N}}|{_MARKS}",
)
_AYA: Final = (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)
_CASCADE: Final = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2: Final = (
    rf"{_CASELESS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_CASCADE}"
    r"|\s{1,2}(?!\S)|\s{1}"
)


def _named(rule: SplitRule, *names: str) -> Iterator[tuple[str, SplitRule]]:
    return ((name, rule) for name in names)


DEFAULT: Final = "default"
"""The rule of files that name none."""

RULES: Final[Mapping[str, SplitRule]] = dict(
    (
        *_named(SplitRule(_DEFAULT), DEFAULT),
        *_named(SplitRule((_GPT2,)), "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"),
        *_named(SplitRule((_GPT2,)), "exaone4", "a.x-4.0", "mellum", "gigachat", "modern-bert", "roberta-bpe"),
        *_named(SplitRule((_GPT2,)), "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code"),
        *_named(SplitRule((r"\p{N}", _GPT2)), "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
        *_named(SplitRule((r"\p{N}", _GPT2)), "minerva-7b", "mellum2"),
        *_named(SplitRule((_LLAMA3,), whole=True, begins=True), "llama3", "llama-v3", "llama-bpe", "falcon3"),
        *_named(SplitRule((_LLAMA3,), whole=True, begins=True), "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        *_named(SplitRule((_LLAMA3,), whole=True, begins=True), "jina-v5-nano"),
        *_named(SplitRule((_LLAMA3,)), "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
        *_named(SplitRule((_GPT4O,)), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
        *_named(SplitRule((_TEKKEN,), whole=True, begins=True), "tekken"),
        *_named(SplitRule((_QWEN2,), composed=True), "qwen2", "deepseek-r1-qwen"),
        *_named(SplitRule((_QWEN35,), composed=True), "qwen35"),
        *_named(SplitRule((_QWEN2,)), "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2", "kormo", "f2llmv2"),
        *_named(SplitRule(_DEEPSEEK_LLM), "deepseek-llm"),
        *_named(SplitRule(_DEEPSEEK_CODER), "deepseek-coder"),
        *_named(SplitRule(_DEEPSEEK3), "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        *_named(SplitRule((_KIMI,)), "kimi-k2"),
        *_named(SplitRule((_SEED,)), "seed-coder"),
        *_named(SplitRule((_BAILING,)), "bailingmoe", "bailingmoe2", "llada-moe"),
        *_named(SplitRule((_EXAONE_MOE,)), "exaone-moe"),
        *_named(SplitRule(_AYA), "tiny_aya", "cohere2moe"),
        *_named(SplitRule(_YOUTU, whole=True), "youtu"),
        *_named(SplitRule(_FALCON), "falcon"),
        *_named(SplitRule((_JAIS2,)), "jais-2"),
        *_named(SplitRule((r"[^\n]+|[\n]+", _QWEN2)), "laguna"),
        *_named(SplitRule((r"\p{N}+", r"(?=(\d{3})+(?!\d))")), "superbpe"),
        *_named(SplitRule((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), whole=True), "minicpm5"),
    )
)
"""Rules by name."""
