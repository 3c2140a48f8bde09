"""The wire form of the Responses API: named events, errors as OpenAI's other routes have them, no end mark."""

from __future__ import annotations

from typing import Final

from ferrum.server.common.dialect import Dialect
from ferrum.server.openai.dialect import OPENAI

RESPONSES: Final = Dialect(paths=("/v1/responses",), ids=("resp_",), error=OPENAI.error)
