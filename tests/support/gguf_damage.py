"""Damaged headers of GGUF files: one change of a real header, drawn by a seed, and what becomes of it."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from gguf.constants import GGMLQuantizationType

from gguf_bytes import FORMATS, Typed, record, value_entry
from gguf_census import ALIGNMENT, Entry, header_metadata, numbers_of

Record = tuple[str, tuple[int, ...], int, int]
"""Name, dimensions, type and offset of a tensor."""

_INTEGERS = (0, 1, 2, 3, 7, 255, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, -1, -(1 << 31))
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e-45, 3e38, 1.5)
_TEXTS = ("", "x", "none", "yarn", "linear", "longrope", "llama", "gpt2", "default", "\u2581", "9" * 400)


@dataclass
class Header:
    """The parts of a header that a change acts on."""

    entries: list[tuple[str, Any]]
    records: list[Record]
    size: int
    data: dict[str, list[float]] = field(default_factory=dict)
    counts: tuple[int, int] | None = None
    version: int = 3

    def written(self) -> bytes:
        """Return the header, padded; a value may be bytes with its type already."""
        values = [value_entry(key, value) for key, value in self.entries]
        tensors, count = self.counts or (len(self.records), len(values))
        head = b"GGUF" + struct.pack("<IQQ", self.version, tensors, count)
        head += b"".join((*values, *(record(*each) for each in self.records)))
        return head + bytes(-len(head) % ALIGNMENT)


def header_of(facts: Entry) -> Header:
    """Return the header of an entry of the census."""
    offset, records = 0, list[Record]()
    for tensor in facts.tensors():
        records.append((tensor.name, tensor.shape, int(GGMLQuantizationType[tensor.kind]), offset))
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    data = {name: numbers_of(facts, name) for name in facts.facts.get("data", {})}
    return Header(list(header_metadata(facts).items()), records, offset, data)


def other_value(random: Random, value: Any) -> Any:
    """Return a value of any type in the place of another one."""
    kind = random.choice(("integer", "integer", "float", "text", "flag", "list", "lie", "wide"))
    if kind == "integer":
        number = random.choice(_INTEGERS)
        return Typed(11, struct.pack("<q", number))
    if kind == "float":
        return Typed(12, struct.pack("<d", random.choice(_FLOATS)))
    if kind == "text":
        return random.choice(_TEXTS)
    if kind == "flag":
        return random.random() < 0.5
    if kind == "list":
        return [random.choice((2, 3, 64))] * random.choice((1, 2, 40))
    if kind == "lie":
        return Typed(9, struct.pack("<IQ", random.choice((*FORMATS, 8, 9, 77)), random.choice((1, 1 << 20, 1 << 62))))
    return Typed(random.choice((0, 1, 2, 3, 13, 99)), b"\x02\x00")


def change_value(random: Random, header: Header) -> str:
    at = random.randrange(len(header.entries))
    key, value = header.entries[at]
    header.entries[at] = key, other_value(random, value)
    return key


def change_number(random: Random, header: Header) -> str:
    """Change a number to another of the same type."""
    numbers = [i for i, (_, value) in enumerate(header.entries) if isinstance(value, int | float)]
    at = random.choice(numbers)
    key, value = header.entries[at]
    if isinstance(value, float):
        header.entries[at] = key, random.choice(_FLOATS)
    else:
        header.entries[at] = key, Typed(4, struct.pack("<I", random.choice(_INTEGERS[:10])))
    return key


def change_list(random: Random, header: Header) -> str:
    """Make a list longer, shorter or empty, or change one of its items."""
    at = random.choice([i for i, (_, value) in enumerate(header.entries) if isinstance(value, list)])
    key, value = header.entries[at]
    ways = (value + value[:1], value[:-1], [], [*value[:-1], random.choice((0, -1, "", 3.5))], value[::-1])
    chosen = random.choice(ways)
    mixed = len({type(item) for item in chosen}) > 1
    header.entries[at] = key, value[:1] if mixed else chosen
    return key


def drop_key(random: Random, header: Header) -> str:
    return header.entries.pop(random.randrange(len(header.entries)))[0]


def repeat_key(random: Random, header: Header) -> str:
    header.entries.append(random.choice(header.entries))
    return header.entries[-1][0]


def change_tensor(random: Random, header: Header) -> str:
    """Change dimensions, type, place or name of a tensor."""
    at = random.randrange(len(header.records))
    name, shape, code, offset = header.records[at]
    other = random.choice(header.records)
    header.records[at] = random.choice(
        (
            (name, shape[::-1], code, offset),
            (name, (*shape[:-1], random.choice((0, 1, shape[-1] + 1, 1 << 31, 1 << 62))), code, offset),
            (name, (1, *shape)[-4:], code, offset),
            (name, (1,) * random.choice((0, 5, 9)), code, offset),
            (name, shape, random.choice((0, 1, 2, 4, 8, 12, 14, 16, 24, 30, 39, 99)), offset),
            (name, shape, code, random.choice((1, offset + 32, 1 << 40, (1 << 64) - 32))),
            (other[0], shape, code, offset),
            (
                random.choice(("", "x", "blk.", "blk.99999.attn_q.weight", name + "x", "blk.-1.ffn_up.weight")),
                *other[1:],
            ),
        )
    )
    return name


def drop_tensor(random: Random, header: Header) -> str:
    return header.records.pop(random.randrange(len(header.records)))[0]


def swap_shapes(random: Random, header: Header) -> str:
    first, second = random.randrange(len(header.records)), random.randrange(len(header.records))
    a, b = header.records[first], header.records[second]
    header.records[first], header.records[second] = (a[0], b[1], b[2], a[3]), (b[0], a[1], a[2], b[3])
    return a[0]


def change_counts(random: Random, header: Header) -> str:
    tensors, entries = len(header.records), len(header.entries)
    header.counts = random.choice(((tensors + 1, entries), (tensors, entries - 1), (1 << 63, entries), (0, 0)))
    return ""


CHANGES: tuple[Callable[[Random, Header], str], ...] = (
    *(change_value, change_value, change_number, change_number, change_list, drop_key, drop_key),
    *(repeat_key, change_tensor, change_tensor, drop_tensor, swap_shapes, change_counts),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a damaged file: an error that is the project's, another one, or none."""

    seed: int
    base: str
    change: str
    target: str
    error: BaseException | None
    seconds: float
    path: Path

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.base}, {self.change} of {self.target!r}: {self.error!r}"


def write(header: Header, path: Path) -> int:
    """Write a file; return the length of its header."""
    head = header.written()
    with path.open("wb") as file:
        file.write(head)
        for name, _, _, offset in header.records:
            if name in header.data and 0 <= offset <= header.size:
                file.seek(len(head) + offset)
                file.write(struct.pack(f"<{len(header.data[name])}f", *header.data[name]))
        file.truncate(len(head) + header.size)
    return len(head)


def damaged(seed: int, base: Header, path: Path) -> tuple[str, str]:
    """Write a damaged file; return the change and what it acts on."""
    random = Random(seed)
    header = replace(base, entries=[*base.entries], records=[*base.records])
    change = random.choice(CHANGES)
    target = change(random, header)
    length = write(header, path)
    with path.open("r+b") as file:
        if random.random() < 0.1:
            file.truncate(random.randrange(length))
        elif random.random() < 0.1:
            file.seek(random.randrange(length))
            file.write(random.randbytes(4))
    return change.__name__, target


def outcome(seed: int, base: Header, path: Path, read: Callable[[Path], object], name: str) -> Outcome:
    """Damage a header and read the file. The name is that of the undamaged file."""
    change, target = damaged(seed, base, path)
    begin, error = time.monotonic(), None
    try:
        read(path)
    except Exception as caught:  # noqa: BLE001 - the caller asks which errors there are
        error = caught
    return Outcome(seed, name, change, target, error, time.monotonic() - begin, path)
