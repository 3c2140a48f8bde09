"""Published GGUF files as test data: entries of `tests/data/published_gguf`, and files of headers made from them."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tokenizers.pre_tokenizers import ByteLevel

from gguf_bytes import record, value_entry

CENSUS = Path(__file__).parents[1] / "data" / "published_gguf"
NAMES = sorted(path.stem for path in CENSUS.glob("*.json"))

ALIGNMENT = 32
_SPACE = "\u2581"
_IDS = re.compile(r"tokenizer\.ggml\.\w+_token_id")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file: dimensions innermost first, type by name."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def nbytes(self) -> int:
        numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        return math.prod(self.shape) // numbers * size


@dataclass(frozen=True)
class Entry:
    """An entry of the census. `facts` is the whole of its file; the other fields are what headers are made from."""

    name: str
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def architecture(self) -> str:
        return str(self.facts["metadata"]["general.architecture"])

    @property
    def special(self) -> dict[int, str]:
        return {int(index): text for index, text in self.facts["special"].items()}

    def tensors(self) -> list[Tensor]:
        """Return the tensors, with the patterns spelled out."""
        patterns = self.facts["tensors"]
        return [Tensor(name, tuple(shape), kind) for pattern, shape, kind in patterns for name in spelled(pattern)]


@cache
def entry(name: str) -> Entry:
    """Return an entry by its name."""
    return Entry(name, json.loads((CENSUS / f"{name}.json").read_text()))


def spelled(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern such as `blk.{0-2,5}.attn_q.weight` stands for."""
    found = re.search(r"\{([^}]*)\}", pattern)
    if found is None:
        yield pattern
        return
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        for layer in range(int(first), int(last or first) + 1):
            yield pattern.replace(found[0], str(layer))


def vocabulary(facts: Entry, *, full: bool = False) -> dict[int, str]:
    """Return the tokens by their published ids: the special ones and an alphabet, or as many as the file has."""
    special = facts.special
    count = facts.facts["arrays"]["tokens"]
    sentence_piece = facts.facts["metadata"]["tokenizer.ggml.model"] != "gpt2"
    alphabet = [f"<0x{i:02X}>" for i in range(256)] if sentence_piece else sorted(ByteLevel.alphabet())
    alphabet += [_SPACE, "\n\n", "\n"] if sentence_piece else ["\u0120t"]
    free = (index for index in range(count) if index not in special)
    tokens = special | {next(free): each for each in alphabet}
    return tokens | {index: f"tok{index}" for index in free} if full else tokens


def tokenizer_metadata(facts: Entry, *, full: bool = False) -> dict[str, Any]:
    """Return all metadata of the tokenizer. Without `full`, ids are places among the tokens that are kept."""
    metadata, arrays = facts.facts["metadata"], facts.facts["arrays"]
    tokens = vocabulary(facts, full=full)
    order = sorted(tokens)
    place = {index: number for number, index in enumerate(order)}
    control = set(facts.special) - set(facts.facts.get("plain", ()))
    types = [3 if index in control else 6 if tokens[index].startswith("<0x") else 1 for index in order]
    kept = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    kept |= {key: place[value] for key, value in kept.items() if _IDS.fullmatch(key) and value in place}
    kept |= {"tokenizer.ggml.tokens": [tokens[index] for index in order], "tokenizer.ggml.token_type": types}
    if "scores" in arrays:
        kept["tokenizer.ggml.scores"] = [-float(number) for number in range(len(order))]
    if kept["tokenizer.ggml.model"] != "llama":
        kept["tokenizer.ggml.merges"] = ["\u0120 t"] if kept["tokenizer.ggml.model"] == "gpt2" else ["\n \n"]
    return kept


def published_ids(facts: Entry, places: list[int]) -> list[int]:
    """Return the published ids of tokens in a file whose vocabulary is not full."""
    order = sorted(vocabulary(facts))
    return [order[place] for place in places]


def header_metadata(facts: Entry, *, full: bool = False) -> dict[str, Any]:
    """Return the metadata of a file of headers."""
    own = {key: value for key, value in facts.facts["metadata"].items() if not key.startswith("tokenizer.")}
    return own | tokenizer_metadata(facts, full=full)


def header_bytes(metadata: Mapping[str, Any], tensors: list[Tensor]) -> tuple[bytes, dict[str, int], int]:
    """Return a header padded to the data, the place of each tensor in the file, and the size of the file."""
    offset, places, records = 0, dict[str, int](), list[bytes]()
    for tensor in tensors:
        records.append(record(tensor.name, tensor.shape, GGMLQuantizationType[tensor.kind], offset))
        places[tensor.name] = offset
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    values = [value_entry(key, value) for key, value in metadata.items()]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(records), len(values)) + b"".join((*values, *records))
    head += bytes(-len(head) % ALIGNMENT)
    return head, {name: len(head) + place for name, place in places.items()}, len(head) + offset


def numbers_of(facts: Entry, name: str) -> list[float]:
    """Return the numbers of a tensor that is read with the header: runs of [count, number], or single ones."""
    runs = [each if isinstance(each, list) else [1, each] for each in facts.facts["data"][name]]
    return [number for count, number in runs for _ in range(count)]


def write_header(facts: Entry, path: Path, *, full: bool = False) -> Path:
    """Write a file with the header of an entry; its tensors are a hole, but for those that are read with the header."""
    head, places, size = header_bytes(header_metadata(facts, full=full), facts.tensors())
    with path.open("wb") as file:
        file.write(head)
        for name in facts.facts.get("data", {}):
            numbers = numbers_of(facts, name)
            file.seek(places[name])
            file.write(struct.pack(f"<{len(numbers)}f", *numbers))
        file.truncate(size)
    return path
