"""API keys and their limits: read from a file; keys are compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from ferrum.core.errors import ConfigError
from ferrum.server.key_limits import KeyLimits

_UNNAMED: Final = "key "
"""Begins the name of a key without one, and no name that is given: those hold no space."""

_LIMIT: Final = re.compile("([a-z_]+)=([1-9][0-9]{0,17})")


class ApiKeys:
    """The accepted keys and whose they are.

    Only their digests are kept: those have one length, so that the time of a comparison tells nothing of a key.

    Args:
        keys: names by key.
        limits: by name.
    """

    def __init__(self, keys: dict[str, str], limits: dict[str, KeyLimits]) -> None:
        self.limits = limits
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


def read_keys(path: str, limits: KeyLimits) -> ApiKeys:
    """The keys of a file: a line each, `key` or `name:key`; empty lines and those that begin with # are skipped.

    Limits of its own may follow a key, as `tokens_per_minute=1000`. Keys of one name have them in common.

    Args:
        limits: of the keys that have none of their own.

    Raises:
        ConfigError: no such file, no key in it, a key twice or not of ASCII, or a limit that is none.
    """
    try:
        lines = Path(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", param="api_key_file") from None
    keys: dict[str, str] = {}
    by_name: dict[str, KeyLimits] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        entry, *words = line.split()
        name, _, key = entry.rpartition(":")
        if not key or key in keys or not key.isascii():  # others arrive in whatever encoding a client takes
            fault = "no key" if not key else "a key twice" if key in keys else "a key has ASCII letters only"
            raise ConfigError(f"{path}, line {number}: {fault}", param="api_key_file")
        keys[key] = name = name or f"{_UNNAMED}{number}"
        own = _own_limits(words, limits, f"{path}, line {number}")
        if by_name.setdefault(name, own) != own:
            raise ConfigError(f"{path}, line {number}: {name} has other limits above", param="api_key_file")
    if not keys:
        raise ConfigError(f"{path} has no keys", param="api_key_file")
    return ApiKeys(keys, by_name)


def _own_limits(words: list[str], limits: KeyLimits, place: str) -> KeyLimits:
    """The limits with those that a line names in their place."""
    known = {each.name for each in fields(KeyLimits)}
    own: dict[str, int] = {}
    for word in words:
        match = _LIMIT.fullmatch(word)
        if match is None or match[1] not in known:
            told = f"{place}: {word!r} is no limit; there are {', '.join(sorted(known))}"
            raise ConfigError(told, param="api_key_file")
        own[match[1]] = int(match[2])
    return replace(limits, **own)
