"""Patterns of ECMA 262 match the same strings after their translation; facts are from the standard's sections."""

from __future__ import annotations

import json

import pytest

from byte_matcher import ByteMatcher
from ferrum.grammar.ecma_patterns import MOST_CHARACTERS, translated
from ferrum.grammar.lark import schema_grammar

SAME = [
    (r"^a.b$", ["axb"], ["a\rb", "a\nb", "a\u2028b"]),  # 22.2.2.7: . excludes line terminators (12.3)
    (r"^\s+$", [" ", "\ufeff", "\u2003"], ["\x85"]),  # 22.2.2.9: \s is white space and line terminators (12.2, 12.3)
    (r"^\w\d\D$", ["a1x"], ["é1x", "a٣x", "a12"]),
    (r"^[\w.-]+$", ["a.-b"], ["é"]),
    (r"^[^\d\s]$", ["a"], ["1", " "]),
    (r"^[[&&\]]+$", ["[&]"], ["a"]),
    (r"^[a\-z]+$", ["a-z"], ["b"]),
    (r"^[+--]$", [",", "-"], ["."]),
    (r"^\u{1F600}$", ["😀"], []),
    (r"^\uD83D\uDE00\x41\cJ\0$", [], ["x"]),
    (r"^a{2,3}?$", ["aa", "aaa"], ["a", "aaaa"]),
    (r"a{b", ["xa{b"], ["ab"]),
    # 22.2.1: each alternative has its own anchors, also within groups.
    ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
    ("x$|^y", ["ax", "ya"], ["xa", "ay"]),
    ("(^|,)a(,|$)", ["a", "b,a", "a,b"], ["ba", "ab"]),
    ("(a|b$)c?", ["xax", "b", "acx"], ["bc"]),
    ("a?^b", ["bx"], ["ab"]),
    ("(^a)*b", ["xb", "aab"], ["a"]),
    ("a{0,2}$|^$", ["xa", ""], []),
    (r"^(?<x>a)|b$", ["ay", "yb"], ["ya"]),
    (r"^[^]$", ["\n", "a"], [""]),
    (r"^\p{Lu}\P{L}$", ["É1"], ["e1"]),
    (r"^\/\.\-#$", ["/.-#"], []),
    (r"^[\b]$", ["\b"], ["b"]),
]


@pytest.mark.parametrize(("pattern", "yes", "no"), SAME, ids=[each[0] for each in SAME])
def test_translated_pattern_matches_the_same_strings(pattern: str, yes: list[str], no: list[str]) -> None:
    matcher = ByteMatcher(schema_grammar({"type": "string", "pattern": translated(pattern)}))
    for words, expected in ((yes, True), (no, False)):
        assert [matcher.accepts(json.dumps(word, ensure_ascii=False)) for word in words] == [expected] * len(words)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("^(?!a)", "look-around"),
        ("(?<=a)b", "look-around"),
        (r"\bfoo", "word boundary"),
        (r"(a)\1", "back-reference"),
        ("(?i)a", "unknown group"),
        (r"\Z", "unknown escape"),
        ("[b-a]", "range"),
        ("[]", "empty class"),
        ("a{1,99999}", "repeats more"),
        (r"\ud800", "surrogate"),
        ("a$b", "matches no text"),
        ("(^a){3}", "anchor in a counted repetition"),
        ("a|*", "nothing to repeat"),
        ("(a", "without a \\)"),
        ("a)", "without a \\("),
        ("[a", "ends within"),
        ("a\\", "ends within"),
        ("a" * (MOST_CHARACTERS + 1), "characters"),
    ],
)
def test_pattern_without_an_equivalent_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        translated(pattern)
