"""Translate the `response_template` of a tokenizer (transformers 5.5 and later, version 1) to an `OutputFormat`."""

from __future__ import annotations

from typing import Any

from ferrum.core.errors import RequestError
from ferrum.core.output_format import OutputFormat


def format_of_response_template(stored: Any) -> OutputFormat:
    """Return the format of a response template.

    Raises:
        RequestError: it has another version, or a form that `OutputFormat` does not have.
    """
    raise RequestError("is not read yet", param="response_template")
