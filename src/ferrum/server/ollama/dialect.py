"""The wire form of Ollama's API: streams of JSON lines, and errors that are one text."""

from __future__ import annotations

from typing import Final

from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError
from ferrum.server.ollama.replies import ErrorReply

CHANGES: Final = ("pull", "push", "create", "copy", "delete", "blobs")
"""Routes below /api that change the models of an Ollama server."""


def _error(error: ApiError) -> bytes:
    return ErrorReply(error=error.message).json_bytes()


OLLAMA: Final = Dialect(
    paths=("/api",),
    ids=("ollama-",),
    error=_error,
    event=b"%(json)b\n",
    keep_alive=b"",
    stream_type="application/x-ndjson",
    typed=False,
)
