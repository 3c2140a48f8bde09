"""The message that a reply continues: mark its end, and cut the rendered text there."""

from __future__ import annotations

from typing import Any, Final

from ferrum.core.errors import RequestError

# It ends with a space: a template that trims messages removes it, which is how trimming is detected.
_END_MARK: Final = "\ue0f0end of the message to continue\ue0f0 "


def mark_end(chat: list[dict[str, Any]]) -> str:
    """Append the end mark to the final message's text and return that text."""
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _END_MARK
        return content
    blocks = content if isinstance(content, list) else []
    for block in reversed(blocks):
        if isinstance(block, dict) and isinstance(text := block.get("text"), str):
            block["text"] = text + _END_MARK
            return text
    raise RequestError("needs a final message with text", param="continue_final_message")


def cut_at_mark(rendered: str, final: str) -> str:
    """Return a rendered text up to the end mark; `final` is the text that `mark_end` returned."""
    mark = _END_MARK.rstrip()
    place = rendered.rfind(mark)
    if place < 0 or final.strip() not in rendered:
        raise RequestError("the chat template omits or changes the final message", param="continue_final_message")
    trimmed = not rendered.startswith(_END_MARK, place)
    return rendered[:place].rstrip() if trimmed else rendered[:place]
