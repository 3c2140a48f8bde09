"""The part of an output that must not depend on how it was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferrum.client.request_output import RequestOutput


def essence(outputs: Sequence[RequestOutput]) -> list[object]:
    """Return everything but ids, times and cached prompt tokens."""
    return [
        (o.prompt_token_ids, o.prompt_logprobs, o.outputs, replace(o.metrics.usage, cached_tokens=0)) for o in outputs
    ]
