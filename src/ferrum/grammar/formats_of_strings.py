"""Regular expressions of the `format` keyword, anchored, in the syntax that llguidance reads.

Each matches only valid strings (RFC 3339, 5321, 1123, 3986, 4291, 4122, 6901). Rare spellings are left out: leap
seconds, quoted local parts, addresses of IPv4 within IPv6.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_LEAP: Final = "(?:0[48]|[2468][048]|[13579][26])"
_YEAR: Final = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE: Final = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    f"02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_N: Final = "[0-9]{1,9}"
_CLOCK: Final = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DAYS: Final = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_LABEL: Final = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
_ATOM: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,31}"
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_H: Final = "[0-9a-fA-F]{1,4}"
_HEX: Final = "[0-9a-fA-F]"
_IPV6: Final = "|".join(
    (
        f"(?:{_H}:){{7}}{_H}",
        f"(?:{_H}:){{1,7}}:",
        *(f"(?:{_H}:){{1,{7 - count}}}(?::{_H}){{1,{count}}}" for count in range(1, 7)),
        f":(?:(?::{_H}){{1,7}}|:)",
    )
)
_CHAR: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_NO_COLON: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%{_HEX}{{2}})"
_HOST: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%{_HEX}{{2}})*"
_USER: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%{_HEX}{{2}})*@"
_AUTHORITY: Final = f"//(?:{_USER})?{_HOST}(?::[0-9]{{1,5}})?(?:/{_CHAR}*)*"
_ROOTED: Final = f"/(?:{_CHAR}+(?:/{_CHAR}*)*)?"
_TAIL: Final = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_URI: Final = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|{_ROOTED}|{_CHAR}+(?:/{_CHAR}*)*){_TAIL}"
_RELATIVE: Final = f"(?:{_AUTHORITY}|{_ROOTED}|{_NO_COLON}+(?:/{_CHAR}*)*|){_TAIL}"
_POINTER: Final = "(?:/(?:[^~/]|~[01])*)*"

FORMATS: Final = MappingProxyType(
    {
        name: f"^(?:{pattern})$"
        for name, pattern in {
            "date": _DATE,
            "time": _TIME,
            "date-time": f"{_DATE}T{_TIME}",
            "duration": f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|{_N}W)",
            "email": rf"{_ATOM}(?:\.{_ATOM})?@{_LABEL}(?:\.{_LABEL}){{1,3}}",
            "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
            "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
            "ipv6": _IPV6,
            "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
            "uri": _URI,
            "uri-reference": f"{_URI}|{_RELATIVE}",
            "json-pointer": _POINTER,
            "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
        }.items()
    }
)
"""The formats that are enforced."""

INTEGER_BOUNDS: Final = MappingProxyType({"int32": 2**31, "int64": 2**53})
"""Formats of OpenAPI that bound integers: at least minus this, below this. Exact integers of JSON end at 2**53."""

READERS: Final = frozenset({"float", "double"})
"""Formats of OpenAPI that say how to store a number; every number has them."""
