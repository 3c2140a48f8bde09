"""What `ferrum serve` prints on a terminal once the model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_WILDCARDS: Final[Mapping[str, str]] = MappingProxyType({"0.0.0.0": "127.0.0.1", "::": "::1"})
"""Addresses that listen everywhere, and those that reach them from this machine."""


def greeting(model: str, host: str, port: int) -> str:
    """Return three lines: the model, the addresses, and how to stop."""
    reached = _WILDCARDS.get(host, host)
    url = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
    return (
        f"{model} is ready\n"
        f"page {url}/   API {url}/v1\n"
        "Ctrl-C stops after running requests; a second Ctrl-C ends them\n"
    )
