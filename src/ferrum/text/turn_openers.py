"""The special token with which a chat template begins messages. Snapshots of states are taken before it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from ferrum.core.errors import FerrumError
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.tokenizer import Tokenizer

_SAID: Final = "one"
_LONGER: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": _SAID},
    {"role": "assistant", "content": _SAID},
    {"role": "user", "content": _SAID},
]


def turn_opener(template: ChatTemplate, tokenizer: Tokenizer) -> int | None:
    """Return the first special token of which a longer conversation has more, or None.

    In ChatML it is `<|im_start|>`, in Llama 3 `<|start_header_id|>`.
    """
    try:
        texts = [template.render(template.prepare(chat)) for chat in (_LONGER[:1], _LONGER)]
    except FerrumError:
        return None
    shorter, longer = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    known, grown = Counter(shorter), Counter(longer)
    special = (token for token in longer if tokenizer.is_special(token))
    return next((token for token in special if grown[token] > known[token]), None)
