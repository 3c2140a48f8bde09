"""`reasoning_effort` as variables of the chat template.

Other variables are the client's own `chat_template_kwargs`.
"""

from __future__ import annotations

import re
from typing import Any

from ferrum.engine.model_client import ModelClient
from ferrum.server.request_bodies import TemplateBody


def effort_variables(client: ModelClient, body: object) -> dict[str, Any]:
    """Return the variables for `reasoning_effort` that the template reads and the client does not set itself."""
    if not isinstance(body, TemplateBody) or body.reasoning_effort is None:
        return {}
    model_sources = () if client.chat_template is None else client.chat_template.sources.values()
    sources = model_sources if body.chat_template is None else (body.chat_template,)
    effort, own = body.reasoning_effort, body.chat_template_kwargs or {}
    variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {
        name: value
        for name, value in variables.items()
        if name not in own and any(re.search(rf"\b{name}\b", source) for source in sources)
    }


def unread_effort(client: ModelClient, body: object) -> tuple[str, ...]:
    """Return `reasoning_effort` if it is given and has no effect, for the header of ignored fields."""
    given = isinstance(body, TemplateBody) and body.reasoning_effort is not None
    return ("reasoning_effort",) if given and not effort_variables(client, body) else ()
