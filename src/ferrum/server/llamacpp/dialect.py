"""The wire form of llama.cpp's own routes: unnamed events, and errors with their status as code."""

from __future__ import annotations

from typing import Final

from ferrum.server.common.dialect import UNNAMED_EVENT, Dialect
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.openai_errors import TYPES
from ferrum.server.llamacpp.bodies import ErrorBody, ErrorReply


def _error(error: ApiError) -> bytes:
    of_class = "invalid_request_error" if error.status_code < 500 else "server_error"
    kind = TYPES.get(error.status_code, of_class)
    named = error.param is None or error.message.startswith(f"{error.param}:")
    message = error.message if named else f"{error.param}: {error.message}"
    return ErrorReply(error=ErrorBody(code=error.status_code, message=message, type=kind)).json_bytes()


LLAMACPP: Final = Dialect(paths=("/infill",), ids=("infill-",), error=_error, event=UNNAMED_EVENT)
