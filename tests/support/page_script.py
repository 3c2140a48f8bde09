"""The script of an assistant for the web page: long answers, Markdown, hostile texts."""

from __future__ import annotations

import re
from typing import Final

import hostile_answers
from agent_script import reply as agent_reply

MARKDOWN: Final = """Here is **bold** text, `code` and a [link](https://example.org/docs).

## A heading

1. First
2. Second
   - nested

```python
def answer() -> int:
    return 42  # the answer
```

| format | bits |
|:--|--:|
| q8_0 | 8.5 |

مرحبا بالعالم
"""
_NO_THOUGHT: Final = "<think>\n\n</think>\n\n"


def reply(prompt: str) -> str:
    """Return the reply to a rendered conversation, or the rest of the one that the prompt begins."""
    last = prompt.rsplit("<|im_start|>user\n", 1)[1]
    question, _, begun = last.partition("<|im_end|>")
    whole = _answer(question)
    if whole is None:
        return agent_reply(prompt)
    begun = begun.partition("<|im_start|>assistant\n")[2].rpartition("</think>")[2].lstrip("\n")
    if begun and whole.startswith(begun):
        return whole[len(begun) :]
    return _NO_THOUGHT + whole if "</think>" not in last else whole


def _answer(question: str) -> str | None:
    if found := re.search(r"(\d+) words", question):
        return " ".join(f"word{number}" for number in range(int(found[1])))
    if found := re.search(r"(\d+) paragraphs", question):
        return "\n\n".join(f"Paragraph {number} with **bold** text and `code`." for number in range(int(found[1])))
    if found := re.search(r"hostile answers (\d+) to (\d+)", question):
        return "\n\n".join(hostile_answers.ANSWERS[int(found[1]) : int(found[2])])
    return MARKDOWN if "Markdown" in question else None
