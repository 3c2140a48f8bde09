"""A tokenizer file in the form that loads fastest."""

from __future__ import annotations

import json
from typing import Any


def quick_form(tokenizer: bytes) -> bytes:
    """A `tokenizer.json` that says the same in the form that the `tokenizers` library reads fastest.

    - Each merge is "left right" instead of ["left", "right"]: half of the strings, and a quarter less time.
    - The vocabulary is in the order of its strings: the library sorts them on its way, and from any other order it
      searches all that it has seen. Another sixth.

    What cannot be said like this stays as it is: a model without a vocabulary or merges of this kind, merges with a
    space in one of them, or a file that is no tokenizer at all, which is for its reader to refuse.
    """
    try:
        content = json.loads(tokenizer)
        quick = _sorted_vocabulary(content["model"]) | _joined_merges(content["model"])
        if not quick:
            return tokenizer
        content["model"] |= quick
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return tokenizer


def _sorted_vocabulary(model: dict[str, Any]) -> dict[str, Any]:
    vocabulary = model.get("vocab")
    return {"vocab": dict(sorted(vocabulary.items()))} if isinstance(vocabulary, dict) else {}


def _joined_merges(model: dict[str, Any]) -> dict[str, Any]:
    joined = [" ".join(pair) if isinstance(pair, list) else "" for pair in model.get("merges") or ()]
    # The library takes a line that begins like this for the title of an old merges file, and leaves it out.
    if any(line.count(" ") != 1 or line.startswith("#version") for line in joined):
        return {}
    return {"merges": joined} if joined else {}
