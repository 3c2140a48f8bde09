"""Conversion of a `tokenizer.json` to the form that the `tokenizers` library loads fastest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def fast_form(tokenizer: bytes) -> bytes:
    """Return an equivalent `tokenizer.json` that the `tokenizers` library loads faster.

    - Each merge is "left right" instead of ["left", "right"]: half as many strings, a quarter less time.
    - The vocabulary is sorted by string: the library sorts it anyway, and slowly in other orders. A sixth less time.

    Files that cannot be written this way are returned unchanged: models without a vocabulary or such merges, merges
    that contain a space, and invalid files, which the reader rejects.
    """
    try:
        content = json.loads(tokenizer)
        fast = _sorted_vocabulary(content["model"]) | _joined_merges(content["model"])
        if not fast:
            return tokenizer
        content["model"] |= fast
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return tokenizer


def _sorted_vocabulary(model: dict[str, Any]) -> dict[str, Any]:
    vocabulary = model.get("vocab")
    return {"vocab": dict(sorted(vocabulary.items()))} if isinstance(vocabulary, dict) else {}


def _joined_merges(model: dict[str, Any]) -> dict[str, Any]:
    pairs = model.get("merges") or ()
    joined = joined_merges(pairs) if all(isinstance(pair, list) for pair in pairs) else []
    return {"merges": joined} if joined else {}


def joined_merges(pairs: Iterable[Sequence[str]]) -> list[str]:
    """Return merges as "left right", or nothing if one cannot be written so."""
    joined = [" ".join(pair) for pair in pairs]
    # The library skips a line with this beginning: it is the header of an old merges file.
    return [] if any(line.count(" ") != 1 or line.startswith("#version") for line in joined) else joined
