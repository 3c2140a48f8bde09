"""Infill prompts: combine the text before a gap and the text after it.

Models trained for infill have tokens that mark the parts (Bavarian et al., "Efficient Training of Language Models to
Fill in the Middle", 2022). The tokens and their order depend on the model family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ferrum.text.tokenizer import Tokenizer, encode_middle


@dataclass(frozen=True, slots=True)
class Marks:
    """Mark tokens of a model family: before the prefix, the suffix and the middle.

    Attributes:
        middle: empty if the last part has no mark.
        suffix_first: the suffix precedes the prefix.
    """

    prefix: str
    suffix: str
    middle: str = ""
    suffix_first: bool = False


CONVENTIONS: Final = (
    Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3, CodeGemma
    Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, StarCoder2, Granite Code
    Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001  DeepSeek Coder
    Marks("[PREFIX]", "[SUFFIX]", suffix_first=True),  # Codestral
)


def infill_prompt(tokenizer: Tokenizer, prefix: Sequence[int], suffix: str, *, begin: bool) -> list[int] | None:
    """Return the token ids after which the model generates the middle.

    Args:
        prefix: token ids without special tokens.
        suffix: text.
        begin: start with the tokenizer's begin token, if it adds one.

    Returns:
        None if the tokenizer has the marks of no known family.
    """
    for marks in CONVENTIONS:
        names = (marks.prefix, marks.suffix, marks.middle)
        first, second, last = ([] if not name else tokenizer.encode(name, add_special_tokens=False) for name in names)
        # Not a mark of this tokenizer: a string of several tokens, or the unknown token for every mark.
        if max(map(len, (first, second, last))) == 1 and first != second:
            parts = [first, prefix, second, encode_middle(tokenizer, suffix), last]
            if marks.suffix_first:
                parts = [*parts[2:4], *parts[:2]]
            around = tokenizer.encode("", add_special_tokens=True)[:1] if begin else []
            return [*(each for each in around if each == tokenizer.bos_token_id), *chain.from_iterable(parts)]
    return None
