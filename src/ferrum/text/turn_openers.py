"""The special tokens with which a chat template begins messages. Snapshots of states are taken before them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

from ferrum.core.errors import FerrumError
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.tokenizer import Tokenizer

_SAID: Final = "one"
_CHAT: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": _SAID},
    {"role": "assistant", "content": _SAID},
    {"role": "user", "content": _SAID},
]


def turn_openers(template: ChatTemplate, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the special tokens with which a longer conversation goes on after a shorter one.

    In ChatML it is `<|im_start|>`, in Llama 3 `<|start_header_id|>`; DeepSeek has one for each role.
    """
    try:
        asked, answered, again = (
            template.render(template.prepare(_CHAT[:count]), add_generation_prompt=False) for count in (1, 2, 3)
        )
        prompt = template.render(template.prepare(_CHAT[:1]))
    except FerrumError:
        return frozenset()
    first, *longer = (tokenizer.encode(text, add_special_tokens=False) for text in (asked, prompt, answered, again))
    found = [*(_first_new(first, chat) for chat in longer), _first_new(longer[1], longer[2])]
    return frozenset(token for token in found if token is not None and tokenizer.is_special(token))


def _first_new(shorter: Sequence[int], longer: Sequence[int]) -> int | None:
    """Return the token that follows the shorter conversation in the longer one, or None if another one begins."""
    common = sum(1 for _ in takewhile(bool, map(int.__eq__, shorter, longer)))
    return longer[common] if common == len(shorter) < len(longer) else None
