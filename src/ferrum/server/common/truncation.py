"""Truncation of prompts that are too long, for `truncate_prompt_tokens` and `truncate`."""

from __future__ import annotations

from itertools import takewhile
from operator import eq

from ferrum.text.tokenizer import Tokenizer


def truncated(
    tokenizer: Tokenizer | None, prompt: str | list[int], keep: int, *, special: bool = True, start: bool = False
) -> str | list[int]:
    """Return at most `keep` tokens of a prompt, special tokens included.

    Models expect the special tokens that begin and end every text; they are kept, and the text between them is cut.

    Args:
        tokenizer: None: a text is returned unchanged, to be refused later.
        special: a text gets special tokens.
        start: keep the start of the text, not its end.
    """
    if tokenizer is None or not isinstance(prompt, str):
        return prompt[:keep] if start else prompt[-keep:]
    ids = tokenizer.encode(prompt, add_special_tokens=special)
    if len(ids) <= keep:
        return ids
    around = tokenizer.encode("", add_special_tokens=special)
    begin = sum(takewhile(bool, map(eq, ids, around)))
    if not start:
        return [*ids[:begin], *ids[len(ids) + begin - keep :]][:keep]
    end = sum(takewhile(bool, map(eq, reversed(ids), reversed(around[begin:]))))
    return [*ids[: max(0, keep - end)], *ids[len(ids) - end :]][:keep]
