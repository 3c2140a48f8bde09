"""Look-ups of stored responses, and the errors for those that are not stored."""

from __future__ import annotations

from typing import Final

from ferrum.server.common.error_replies import ApiError, invalid
from ferrum.server.common.reply_store import GONE, ReplyStore, StoredReply, Turn

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
