"""Stored responses: look-ups, and items of a conversation as they are stored and listed: whole, each with an id.

What items mean for the model is in `history`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic_core import from_json

from ferrum.server.common.error_replies import ApiError, invalid
from ferrum.server.common.reply_store import GONE, ReplyStore, StoredReply, Turn
from ferrum.server.responses.fields import REFERENCE
from ferrum.server.responses.history import sealed
from ferrum.server.responses.replies import ItemList

PREFIX: Final = "resp_"
"""Of the ids of responses. The store has replies of other dialects too."""


def find(store: ReplyStore, tenant: str, id: str) -> StoredReply | None:
    """Return a response of the tenant and mark it as used."""
    return store.find(tenant, id) if id.startswith(PREFIX) else None


def get(store: ReplyStore, tenant: str, id: str) -> StoredReply:
    """Return a response of the tenant and mark it as used. Raises ApiError, 404."""
    stored = find(store, tenant, id)
    if stored is None:
        reason = f"no response {id!r} is stored: {GONE}"
        raise ApiError(404, reason, code="response_not_found", param="response_id")
    return stored


def previous_turn(store: ReplyStore, tenant: str, id: str) -> Turn:
    """Return the turn of a response that a request continues.

    Raises:
        ApiError: 400, it is not stored.
        RequestError: it is in progress.
    """
    stored = find(store, tenant, id)
    if stored is None:
        reason = f"previous response {id!r} is not stored: {GONE}"
        raise ApiError(400, reason, code="previous_response_not_found", param="previous_response_id")
    if stored.run is not None:
        raise invalid("previous_response_id", f"{id!r} is in progress; wait for its end")
    return stored.turn


# Items

_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_OF_RESPONSE: Final = re.compile(r"[a-z]+_(resp_.+)_(?:in)?[0-9]+", re.DOTALL)
"""Ids of items name their response."""


def stored_items(items: Sequence[Mapping[str, Any]], reply_id: str, known: Collection[str]) -> list[dict[str, Any]]:
    """Return the input of a response in the form in which it is listed.

    Args:
        known: ids of earlier items; an item with one of them gets another.
    """
    made, used = [], {*known}
    for place, item in enumerate(items):
        kind = str(item.get("type") or "message")
        id = item.get("id")
        if not isinstance(id, str) or not id or id in used:
            id = f"{_PREFIXES.get(kind, 'item')}_{reply_id}_in{place}"
        used.add(id)
        whole = {**item, "id": id, "type": kind}
        if kind == "message" and isinstance(item.get("content"), str):
            whole["content"] = [_part(str(item.get("role")), item["content"])]
        if kind != "reasoning" and whole.get("status") is None:
            whole["status"] = "completed"
        made.append(whole)
    return made


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def without_references(store: ReplyStore, tenant: str, items: Sequence[Any]) -> list[Any]:
    """Return items with references replaced by the stored items that they name. Raises ApiError, 404."""
    return [_referred(store, tenant, item, f"input[{place}].id") for place, item in enumerate(items)]


def _referred(store: ReplyStore, tenant: str, item: Any, where: str) -> Any:
    if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
        return item
    kind = item.get("type")
    if kind != REFERENCE and not (kind is None and "role" not in item):
        return item
    match = _OF_RESPONSE.fullmatch(item["id"])
    stored = None if match is None else find(store, tenant, match[1])
    own = [] if stored is None else [*from_json(stored.turn.asked), *from_json(stored.turn.said)]
    found = next((each for each in own if each["id"] == item["id"]), None)
    if found is None:
        reason = f"item {item['id']!r} is not stored here; send the item itself"
        raise ApiError(404, reason, code="item_not_found", param=where)
    return found


def with_reasoning(items: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return items whose reasoning has the encrypted form too."""
    return [_sealed(each) if each.get("type") == "reasoning" else each for each in items]


def _sealed(item: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = item.get("content")
    text = "\n".join(str(each.get("text", "")) for each in parts) if isinstance(parts, list) else ""
    return {**item, "encrypted_content": sealed(text)} if text and "encrypted_content" not in item else item


def page(items: Sequence[Any], after: str, limit: int, order: Literal["asc", "desc"]) -> ItemList:
    """Return a page of items.

    Args:
        items: the oldest first.
        after: id of the last item of the page before, or empty.

    Raises:
        ApiError: 404, there is no such item.
    """
    listed = list(items) if order == "asc" else list(items)[::-1]
    start = 0
    if after:
        place = next((place for place, each in enumerate(listed) if each["id"] == after), None)
        if place is None:
            raise ApiError(404, f"the response has no item {after!r}", code="item_not_found", param="after")
        start = place + 1
    data = listed[start : start + limit]
    return ItemList(
        object="list",
        data=data,
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
        has_more=start + limit < len(listed),
    )
