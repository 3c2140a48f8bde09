"""API keys and their limits, read from a file. Keys are compared in constant time.

The limits are enforced in `key_limits`, the keys in `http_guard`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Final

from ferrum.core.errors import ConfigError
from ferrum.server.common.key_limits import KeyLimits

_UNNAMED: Final = "key "
"""Prefix of tenants without a name. Given names contain no space."""

_ONLY: Final = "key"
"""The tenant of the only key."""

_error: Final = partial(ConfigError, param="api_key_file")
_LIMIT: Final = re.compile("([a-z_]+)=([1-9][0-9]{0,17})")


class ApiKeys:
    """The accepted API keys and their tenants.

    Only digests of keys are stored. They have equal length, so comparison time reveals nothing about a key.

    Args:
        keys: tenants by key.
        limits: by tenant.
    """

    def __init__(self, keys: dict[str, str], limits: dict[str, KeyLimits]) -> None:
        self.limits = limits
        self._names = [(_digest(key), name) for key, name in keys.items()]

    def tenant(self, key: str) -> str | None:
        """Return the tenant of a key, or None for an unknown key. Compares every key."""
        digest, found = _digest(key), None
        for each, name in self._names:
            if hmac.compare_digest(each, digest):
                found = name
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def only_key(key: str, limits: KeyLimits) -> ApiKeys:
    """Return the one accepted key. Raises ConfigError if it is not of visible ASCII characters."""
    if not re.fullmatch("[!-~]+", key):  # the value is a secret, and not repeated
        raise ConfigError("must be visible ASCII characters, at least one", param="api_key")
    return ApiKeys({key: _ONLY}, {_ONLY: limits})


def read_keys(path: str, limits: KeyLimits) -> ApiKeys:
    """Read a file of API keys: one per line, `key` or `name:key`.

    Empty lines and lines that begin with # are skipped. A key may be followed by limits such as
    `tokens_per_minute=1000`. Keys with the same name share their limits.

    Args:
        limits: defaults for keys without limits in the file.

    Raises:
        ConfigError: the file is missing or has no keys; a key is repeated or not ASCII; a limit is invalid.
    """
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _error(f"cannot read {path}: {error}") from None
    keys: dict[str, str] = {}
    by_name: dict[str, KeyLimits] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        entry, *words = line.split()
        name, _, key = entry.rpartition(":")
        if not key or key in keys or not key.isascii():  # the encoding of other characters depends on the client
            fault = "no key" if not key else "repeated key" if key in keys else "a key must be ASCII"
            raise _error(f"{path}, line {number}: {fault}")
        keys[key] = name = name or f"{_UNNAMED}{number}"
        own = _own_limits(words, limits, f"{path}, line {number}")
        if by_name.setdefault(name, own) != own:
            raise _error(f"{path}, line {number}: limits of {name} differ from an earlier line")
    if not keys:
        raise _error(f"{path} contains no keys")
    return ApiKeys(keys, by_name)


def _own_limits(words: list[str], limits: KeyLimits, place: str) -> KeyLimits:
    """Return the limits with those of a line replaced."""
    known = {each.name for each in fields(KeyLimits)}
    own: dict[str, int] = {}
    for word in words:
        match = _LIMIT.fullmatch(word)
        if match is None or match[1] not in known:
            raise _error(f"{place}: {word!r} is not a limit; use NAME=NUMBER with {', '.join(sorted(known))}")
        own[match[1]] = int(match[2])
    return replace(limits, **own)
