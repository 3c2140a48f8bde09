"""The merges of a byte-pair tokenizer in the form that loads fastest."""

from __future__ import annotations

import json


def with_joined_merges(tokenizer: bytes) -> bytes:
    """A `tokenizer.json` that says the same in fewer strings: each merge is "left right" instead of ["left", "right"].

    The `tokenizers` library takes both forms, this one a quarter faster and in little more than half of the memory:
    .30 instead of .40 s with 150,000 entries. What cannot be said like this stays as it is: another kind of model, a
    merge with a space in it, or a file that is no tokenizer at all, which is for its reader to refuse.
    """
    try:
        content = json.loads(tokenizer)
        merges = content["model"]["merges"]
        joined = [" ".join(pair) if isinstance(pair, list) else "" for pair in merges]
        # The library takes a line that begins like this for the title of an old merges file, and leaves it out.
        if any(line.count(" ") != 1 or line.startswith("#version") for line in joined):
            return tokenizer
        content["model"]["merges"] = joined
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return tokenizer
