"""GBNF keeps its language in Lark: facts of llama.cpp's documentation, and a matcher that tries every way."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byte_matcher import ByteMatcher
from ferrum.core.errors import InvalidGrammar
from ferrum.grammar.gbnf_lark import gbnf_as_lark
from gbnf_matcher import GbnfMatcher
from hypothesis_settings import examples

LINES = r"""
# sums, one in a line
root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= name | num | "(" ws expr ")" ws
name ::= [a-z] [a-z0-9_]* ws
num  ::= [0-9]+ ws
ws   ::= [ \t\n]*
"""
OBJECT = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
CHESS = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move ::= (pawn | other | "O-O" "-O"?) [+#]?
other ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
"""
PROGRAM = r"""
root ::= (declaration)*
declaration ::= type name "(" parameter? ")" "{" statement* "}"
type ::= "int" ws | "char" ws
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= type name
statement ::=
  ( type name ws "=" ws expression ";" ) |
  ( "return" ws expression ";" ) |
  ( "while" "(" expression ")" "{" statement* "}" ) | comment
expression ::= name | [0-9]+ | "(" ws expression ws [+*<] ws expression ws ")"
comment ::= "//" [^\n]* "\n"
ws ::= ([ \t\n]+)
"""

FACTS: list[tuple[str, list[str], list[str]]] = [
    (LINES, ["x=1\n", "x =\n1\n", "(a1+2)*3=4 \n\ny=2\n"], ["x=1", "x=\n", "1x=1\n"]),
    (OBJECT, ["{}", '{"a": [1, -2.5e10, "x\\n\\u00e9é"],\n\t"b": {"c": null}}'],
     ["{", '{"a": 01}', '{"a": "\n"}', "[]"]),
    ('root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"',
     ["- a - b\n", "- é\n- b\n"], ["- a", "-a\n"]),
    (CHESS, ["1. e4 e5\n", "1. O-O-O Nxf3+\n2. exd8=Q a1\n"], ["1. e9 e5\n", "1. e4\n"]),
    (PROGRAM, ["int main(char c){return ( a + 1 );}", "int f(){// no\nwhile(x){}int  y = 2;}"], ["intmain(){}"]),
    ('root ::= num num\nnum ::= [0-9]+', ["12", "123"], ["1", ""]),
    ('root ::= word "."\nword ::= .+', ["a.", "..", "\né."], ["."]),  # any character, a line break, too
    (r'root ::= "\u00e9" "\U0001F600" "\x41" [\x42-\x43] "\t\r\n\"\\\[\]"', ['é😀AB\t\r\n"\\[]'], []),
    ('root ::= start a-b a_b\nstart ::= "s"\na-b ::= "x"\na_b ::= "y"', ["sxy"], ["syx"]),
    ('root ::= "a"{2} ("b" "c"){1,2} [d]{1,} "e"?', ["aabcd", "aabcbcdde"], ["abcd", "aad"]),
    ('root ::= "a" | # one\n  "b"\n  | "c" # three\n\n| "d"\nx ::= "y"', ["a", "b", "c", "d"], ["y"]),
    ('root ::= [^a-c\\]] [-x] [x-]', ["d--", "éxx"], ["a--", "]--"]),
    ('root ::= "" | ("x" "")+', ["", "xx"], []),
    ('root ::= "a" x\nx ::= "b" | y\ny ::= "c" y', ["ab"], ["ac", "acb"]),  # y has no finite text
    ("root ::= [ab]* [b] [^x]\r\n", ["bb", "abbc"], ["b", "ab"]),
]  # fmt: skip


def matcher_of(grammar: str) -> ByteMatcher:
    return ByteMatcher(json.dumps({"grammars": [{"lark_grammar": gbnf_as_lark(grammar)}]}))


@pytest.mark.parametrize(("grammar", "yes", "no"), FACTS, ids=[each[0].strip()[:30] for each in FACTS])
def test_gbnf_counts_characters_as_llama_cpp_does(grammar: str, yes: list[str], no: list[str]) -> None:
    matcher = matcher_of(grammar)
    assert {text: matcher.accepts(text) for text in [*yes, *no]} == {
        **dict.fromkeys(yes, True),
        **dict.fromkeys(no, False),
    }


_LEAVES = st.sampled_from(['"a"', '"b"', '"ab"', '"ba"', '"c"', '""', "[ab]", "[^a]", ".", "[a-c]", "x", "y"])
_COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{1,}"])
_BODIES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"({' | '.join(options)})"),
        st.tuples(inner, _COUNTS).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=7,
)
_TEXTS = ["".join(text) for size in range(6) for text in itertools.product("abc", repeat=size)]


@examples(120)
@given(root=_BODIES, x=_BODIES, y=_BODIES, texts=st.lists(st.sampled_from(_TEXTS), min_size=20, max_size=40))
def test_gbnf_in_lark_accepts_what_every_way_through_it_does(root: str, x: str, y: str, texts: list[str]) -> None:
    grammar = f'root ::= {root}\nx ::= "a" ({x}) | "c"\ny ::= [bc] ({y})?\n'
    matcher, every = matcher_of(grammar), GbnfMatcher(grammar)
    assert [matcher.accepts(text) for text in texts] == [every.accepts(text) for text in texts], grammar


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a" foo', "line 1: the rule foo is not defined"),
        ('x ::= "a"', "has no rule root"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule root is defined twice"),
        ('root ::= x "b" | "b"\nx ::= "a"? root', "the rule root may begin with itself"),
        ('root ::= "a" root', "the rule root has no finite text"),
        ('root ::= "\\d"', r"\\d is not an escape"),
        ('root ::= <think> "a"', "tokens"),
        ('root ::= "a"{2001}', "more than 2000 times"),
        ('root ::= "a"{3,2}', "limit below"),
        ('root ::= "a"{,2}', "a repetition is"),
        ('root ::= "a', "a text has no end"),
        ("root ::= [b-a]", "ends before it begins"),
        ('root ::= ("a"', r"a group has no \)"),
        ('root ::= "a")', r"'\)' is not expected"),
        (r'root ::= "\uD800"', "is not a character"),
    ],
)
def test_wrong_gbnf_is_refused_with_its_rule_or_line(grammar: str, reason: str) -> None:
    with pytest.raises(InvalidGrammar, match=reason):
        gbnf_as_lark(grammar)
