#!/usr/bin/env bash
# llguidance 1.9.1: where a lazy and a greedy lexeme match the same text, only the lazy one counts.
#
# Guess: start: A "1" | b "2" accepts x<e>1 and x<e>2, as a grammar of alternatives does. Seen: only x<e>2 is accepted
# if b is lazy, and only x<e>1 if a is. Both are if both are lazy. A grammar that mixes values of an enumeration with text up
# to a closing tag therefore cannot write the enumeration.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.9.1
"$folder/venv/bin/python" - <<'PY'
import llguidance

print("llguidance", llguidance.__version__ if hasattr(llguidance, "__version__") else "1.9.1")
tokens = llguidance.LLTokenizer("byte")


def accepts(grammar: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(tokens, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error(), matcher.get_error()
    ids = tokens.tokenize_str(text)
    return matcher.validate_tokens(ids) == len(ids)


def grammar(first: str, second: str) -> str:
    return f'start: a "1" | b "2"\na{first}: /x<e>/\nb{second}: /(?s:.*)<e>/\n'


seen = {}
for name, marks in {"greedy, lazy": ("", "[lazy]"), "lazy, lazy": ("[lazy]", "[lazy]"), "lazy, greedy": ("[lazy]", "")}.items():
    seen[name] = [accepts(grammar(*marks), f"x<e>{end}") for end in "12"]
    print(f"a is {name.split(', ')[0]}, b is {name.split(', ')[1]}: x<e>1 {seen[name][0]}, x<e>2 {seen[name][1]}")
assert seen["greedy, lazy"] == [False, True], "this has changed"
assert seen["lazy, greedy"] == [True, False], "this has changed"
assert seen["lazy, lazy"] == [True, True], "this has changed"
PY
