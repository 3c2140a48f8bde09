"""Split rules of byte-level vocabularies by the name that `tokenizer.ggml.pre` gives them.

The names and their flags are those of llama.cpp (src/llama-vocab.cpp); the patterns are those of the models'
`tokenizer.json` files, which llama.cpp quotes where its regular expressions cannot spell them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final


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
