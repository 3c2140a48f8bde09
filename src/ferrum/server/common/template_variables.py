"""Which variables a chat template reads: fields about reasoning have an effect only through them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ferrum.client.model_client import ModelClient


def template_reads(client: ModelClient, name: str, chat_template: str | None = None) -> bool:
    """Return whether the template of a request reads a variable.

    Args:
        client: of the model.
        name: of the variable.
        chat_template: replaces the model's.
    """
    model_sources = () if client.chat_template is None else client.chat_template.sources.values()
    sources = model_sources if chat_template is None else (chat_template,)
    return any(re.search(rf"\b{name}\b", source) for source in sources)


def read_variables(
    client: ModelClient, variables: Mapping[str, Any], chat_template: str | None = None
) -> dict[str, Any]:
    """Return the variables that the template of a request reads. Arguments as of `template_reads`."""
    return {name: value for name, value in variables.items() if template_reads(client, name, chat_template)}
