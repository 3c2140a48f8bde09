"""`reasoning_effort` as variables of the chat template, and which fields a template does not read.

Other variables are the client's own `chat_template_kwargs`.
"""

from __future__ import annotations

import re
from typing import Any

from ferrum.engine.model_client import ModelClient
from ferrum.server.openai.bodies import RenderRequest, TemplateBody, TokenizeRequest


def effort_variables(client: ModelClient, body: object) -> dict[str, Any]:
    """Return the variables for `reasoning_effort` that the template reads and the client does not set itself."""
    if not isinstance(body, TemplateBody) or body.reasoning_effort is None:
        return {}
    effort, own = body.reasoning_effort, body.chat_template_kwargs or {}
    variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {name: value for name, value in variables.items() if name not in own and _reads(client, body, name)}


def unread_fields(client: ModelClient, body: object) -> list[str]:
    """Return given fields that the template does not read, for the header of ignored fields."""
    unread = []
    given = isinstance(body, TemplateBody) and body.reasoning_effort is not None
    if given and not effort_variables(client, body):
        unread.append("reasoning_effort")
    if isinstance(body, RenderRequest | TokenizeRequest) and body.tools and not _reads(client, body, "tools"):
        unread.append("tools")
    return unread


def _reads(client: ModelClient, body: TemplateBody | TokenizeRequest, name: str) -> bool:
    """Return whether the template of a request reads a variable."""
    model_sources = () if client.chat_template is None else client.chat_template.sources.values()
    sources = model_sources if body.chat_template is None else (body.chat_template,)
    return any(re.search(rf"\b{name}\b", source) for source in sources)
