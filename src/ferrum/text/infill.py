"""Filling in the middle: a prompt out of what comes before a gap and what comes after it.

A model trained for it has tokens that mark the parts (Bavarian et al., "Efficient Training of Language Models to Fill
in the Middle", 2022), and generates the middle after them. Which tokens and which order is a convention of its family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ferrum.text.tokenizer import Tokenizer, encode_middle


@dataclass(frozen=True, slots=True)
class Marks:
    """A family's marks: those before the prefix, before the suffix and before the middle.

    Attributes:
        middle: empty where the last part simply goes on.
        suffix_first: the suffix stands before the prefix.
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
    """The token ids after which the model writes what belongs between prefix and suffix.

    Args:
        prefix: token ids, without any around them.
        suffix: text.
        begin: put the begin token of texts before all, where the tokenizer puts one.

    Returns:
        None where the tokenizer has the marks of no convention.
    """
    for marks in CONVENTIONS:
        names = (marks.prefix, marks.suffix, marks.middle)
        first, second, last = ([] if not name else tokenizer.encode(name, add_special_tokens=False) for name in names)
        # What takes several tokens is no mark of this tokenizer, nor is the one for all that it does not know.
        if max(map(len, (first, second, last))) == 1 and first != second:
            parts = [first, prefix, second, encode_middle(tokenizer, suffix), last]
            if marks.suffix_first:
                parts = [*parts[2:4], *parts[:2]]
            around = tokenizer.encode("", add_special_tokens=True)[:1] if begin else []
            return [*(each for each in around if each == tokenizer.bos_token_id), *chain.from_iterable(parts)]
    return None
