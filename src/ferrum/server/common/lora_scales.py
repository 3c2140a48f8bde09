"""Adapters of a request by llama.cpp's ids: the field `lora` and the body of POST /lora-adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from ferrum.client.adapter_registry import AdapterRegistry, NamedAdapter
from ferrum.core.errors import RequestError
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.field_rules import Integer
from ferrum.server.common.json_bodies import Body


class LoraScale(Body):
    """An adapter and its scale."""

    id: Annotated[int, Integer(0)] = Field(description="Of GET /lora-adapters.")
    scale: float = Field(description="Factor of its low-rank products; 0 leaves it out.")


def of_scales(adapters: AdapterRegistry, given: Sequence[LoraScale], field: str = "lora") -> tuple[NamedAdapter, ...]:
    """Return adapters with scales. Raises RequestError for an unknown id, or a scale that it cannot have."""
    by_id, found = {each.id - 1: each for each in adapters}, dict[int, NamedAdapter]()
    for place, each in enumerate(given):
        if each.id not in by_id:
            known = ", ".join(map(str, by_id)) or "none"
            raise invalid(f"{field}[{place}].id", f"no adapter has the id {each.id} (ids: {known})")
        if each.id in found:
            raise invalid(f"{field}[{place}].id", f"names the adapter {each.id} twice")
        try:
            found[each.id] = by_id[each.id].scaled(each.scale)
        except RequestError as error:
            raise error.about(f"{field}[{place}].scale") from None
    return tuple(found.values())
