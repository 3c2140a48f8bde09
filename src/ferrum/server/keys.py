"""API keys: read from a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from ferrum.core.errors import ConfigError


class ApiKeys:
    """The accepted keys and whose they are.

    Only their digests are kept: those have one length, so that the time of a comparison tells nothing of a key.

    Args:
        keys: names by key.
    """

    def __init__(self, keys: dict[str, str]) -> None:
        self._names = [(_digest(key), name) for key, name in keys.items()]

    def tenant(self, key: str) -> str | None:
        """The name of a key's owner; None for a key that is not accepted. Every key is compared."""
        digest, found = _digest(key), None
        for each, name in self._names:
            if hmac.compare_digest(each, digest):
                found = name
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: str) -> ApiKeys:
    """The keys of a file: a line each, `key` or `name:key`; empty lines and those that begin with # are skipped.

    Raises:
        ConfigError: no such file, no key in it, or a key twice.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", param="api_key_file") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, _, key = line.rpartition(":")
        if not key or key in keys:
            raise ConfigError(f"{path}, line {number}: {'a key twice' if key else 'no key'}", param="api_key_file")
        keys[key] = name or f"key-{number}"
    if not keys:
        raise ConfigError(f"{path} has no keys", param="api_key_file")
    return ApiKeys(keys)
