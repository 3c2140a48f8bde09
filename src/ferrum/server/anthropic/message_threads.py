"""Threads: conversations that the server holds, so that clients send only what is new.

A thread is a chain of turns in the store of replies, under the ids of its messages. Its first turn has `system` and
`tools`, which stay the same. Several requests may continue the same message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pydantic_core import from_json, to_json

from ferrum.server.anthropic.fields import CountRequest, Message, ThreadContinue
from ferrum.server.anthropic.replies import MessageReply
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.json_bodies import Body
from ferrum.server.common.reply_store import GONE, ReplyStore, StoredReply, Turn, all_items

PREFIX: Final = "msg_"
"""Of the ids of messages. The store has replies of other dialects too."""

FIXED: Final = ("system", "tools")
"""Fields that a thread is created with. Requests that continue it leave them out."""

Asked = TypeVar("Asked", bound=CountRequest)


def held_turn(store: ReplyStore, tenant: str, body: CountRequest) -> Turn | None:
    """Return the turn that a body continues. Raises ApiError, 404, if it is not stored."""
    if not isinstance(body.thread, ThreadContinue):
        return None
    name = body.thread.previous_message_id
    stored = store.find(tenant, name) if name.startswith(PREFIX) else None
    if stored is None:
        reason = f"message {name!r} holds no thread: {GONE}; send all messages with thread = {{'type': 'create'}}"
        raise ApiError(404, reason, code="thread_not_found", param="thread.previous_message_id")
    return stored.turn


def completed(body: Asked, held: Turn | None) -> tuple[Asked, Sequence[Message]]:
    """Return a body with the fields of the thread that it continues, and the thread's messages.

    Raises:
        ApiError: 400, a field differs from the thread's.
    """
    if held is None:
        return body, ()
    fixed, *messages = all_items(held)
    sent = _fixed(body)
    changed = [name for name, value in sent.items() if value != fixed.get(name)]
    if changed:
        reason = f"{' and '.join(changed)} differ from those that the thread was created with; leave them out"
        raise ApiError(400, reason, code="thread_fingerprint_mismatch", param=changed[0])
    thread = CountRequest.model_validate({**fixed, "messages": messages})
    return body.model_copy(update={name: getattr(thread, name) for name in FIXED}), thread.messages


class HeldThread:
    """Stores a message of a thread at its end.

    Args:
        body: as the client sent it.
        held: the turn that it continues.
    """

    def __init__(self, store: ReplyStore, tenant: str, body: CountRequest, held: Turn | None) -> None:
        self._store = store
        self._tenant = tenant
        asked = to_json([_sent(each) for each in body.messages])
        self._turn = Turn(Turn(None, to_json([_fixed(body)])) if held is None else held, asked)

    def keep(self, message: MessageReply) -> None:
        """Store a whole message under its id."""
        said = [{"role": "assistant", "content": message.model_dump(exclude_unset=True)["content"]}]
        self._store.finish(StoredReply(self._tenant, message.id, self._turn), b"", to_json(said))


def _fixed(body: CountRequest) -> dict[str, Any]:
    """Return the fields that stay the same, as they were sent."""
    sent = _sent(body)
    return {name: sent[name] for name in FIXED if sent.get(name) is not None}


def _sent(body: Body) -> dict[str, Any]:
    fields: dict[str, Any] = from_json(body.__pydantic_serializer__.to_json(body, exclude_unset=True, by_alias=True))
    return fields
