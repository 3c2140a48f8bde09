"""GGUF files of a repository or folder: which are models, what they are called, and which one a name means.

    PLACE:TAG            the file with this tag in its name, such as Q4_K_M
    PLACE/FOLDER/F.gguf  this file
    PLACE                Q4_K_M, else Q8_0, else the only file

`projector_for` says which file of a projector belongs to a model.

A place is a repository of the hub or a folder. Names are compared without regard to case where that is unambiguous.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ferrum.core.errors import ModelNotFound
from ferrum.sources.gguf_file import is_model
from ferrum.sources.readable_files import DEPTH, files_below

SUFFIX: Final = ".gguf"
"""Ending of GGUF files, in letters of any case."""

PREFERRED: Final = ("Q4_K_M", "Q8_0")
"""The order of preference that llama.cpp's users know."""

_PART: Final = re.compile(r"-(\d{5})-of-(?P<count>\d{5})(?=\.gguf$)", re.IGNORECASE)
_NO_MODEL: Final = re.compile(r"(mmproj|imatrix)[^/]*$|(^|/)mmproj/", re.IGNORECASE)
"""Projectors of images and importance matrices."""

_DRAFTS: Final = re.compile(r"(mtp|eagle3|dflash|dspark)-[^/]*$")
"""Files that only propose tokens for a model; llama.cpp passes over the same words, in lower case."""

_TAG: Final = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|B?F(?:16|32)|FP(?:16|32)|(?:MX|NV)FP4(?:_[0-9A-Z]+)?|TQ\d_\d))$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to choose.

    Attributes:
        place: the repository or folder, for messages.
        tag: in the file's name; None with `file`, or for the preferred file.
        file: its path in the place.
    """

    place: str
    tag: str | None = None
    file: str | None = None


def is_gguf_name(name: str) -> bool:
    """Whether a file's name ends as those of GGUF files do."""
    return name.lower().endswith(SUFFIX)


def models_in(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts of each model among the files of a place, by the model's path without part numbers."""
    return _grouped(file for file in files if not _NO_MODEL.search(file) and not _DRAFTS.search(file))


def _grouped(files: Iterable[str]) -> dict[str, list[str]]:
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if is_gguf_name(file):
            models.setdefault(_PART.sub("", file), []).append(file)
    return models


def models_below(folder: Path, depth: int = DEPTH) -> list[str]:
    """Return the files of the complete models in a folder, by their paths in it."""
    whole = (parts for parts in models_in(gguf_below(folder, depth)).values() if is_whole(parts))
    return [file for parts in whole if is_model(folder / parts[0]) for file in parts]


def gguf_below(folder: Path, depth: int = DEPTH) -> list[str]:
    """Return the GGUF files in a folder, models or not, by their paths in it."""
    return [path.relative_to(folder).as_posix() for path in files_below(folder, depth) if is_gguf_name(path.name)]


def is_whole(parts: list[str]) -> bool:
    """Whether all parts of a model are there."""
    found = _PART.search(parts[0])
    return len(parts) == (1 if found is None else int(found["count"]))


def tag_of(model: str) -> str | None:
    """Return the tag at the end of a model's name, or that of its folder: the name of a format. None without one."""
    *folders, name = model[: -len(SUFFIX)].split("/")
    found = _TAG.search(name)
    if found is None and folders:
        found = _TAG.fullmatch(folders[-1])
    return None if found is None else found[1]


def names_in(place: str, files: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts of each model among files, by the shortest name that means it.

    Names with white space end in `.gguf`: `ferrum run` takes other words with white space for a prompt.
    """
    models = models_in(files)
    short = not any(map(str.isspace, place))
    tags = {model: tag for model in models if short and (tag := tag_of(model)) is not None}
    counts = Counter(tag.upper() for tag in tags.values())
    return {
        f"{place}:{tags[model]}" if model in tags and counts[tags[model].upper()] == 1 else f"{place}/{parts[0]}": parts
        for model, parts in models.items()
    }


def projector_for(model: str, files: Iterable[str]) -> str | None:
    """Return the file of the projector that belongs to a model among the files of a place; None without one.

    The rule is llama.cpp's: names contain `mmproj`; files of the model's own folder before those of the folders above
    it; then the one whose format has the number of bits nearest to the model's; then the first by name. A projector
    whose name contains the name of the model precedes, and one with the name of another model is not taken.

    Args:
        model: path of the model's first part in the place.
        files: all paths.
    """
    files = sorted(files)
    folder = model.split("/")[:-1]
    stems = {_stem(each) for each in models_in(files)} - {""}
    own, bits, best = _stem(_PART.sub("", model)), _bits(model), list[tuple[tuple[int, bool, int], str]]()
    for file in files:
        at, name = file.split("/")[:-1], _word(file.rpartition("/")[2])
        if "mmproj" not in name or not is_gguf_name(file) or at != folder[: len(at)]:
            continue
        named = max((stem for stem in stems if stem in name), key=len, default=None)
        if named is None or named == own:
            best.append(((-len(at), named is None, abs(_bits(file) - bits)), file))
    return min(best)[1] if best else None


def _stem(model: str) -> str:
    """Return a model's name without its tag, in lower case and with one kind of separator."""
    name, tag = model.rpartition("/")[2][: -len(SUFFIX)], tag_of(model)
    return _word(name.removesuffix(tag) if tag else name).strip("-")


def _word(name: str) -> str:
    return re.sub(r"[-._]+", "-", name.lower())


def _bits(file: str) -> int:
    """Return the number of bits in the last word of a file's name (Q4_K_M: 4, F16: 16); 0 without one."""
    word = re.split(r"[-.]", _PART.sub("", file)[: -len(SUFFIX)])[-1]
    found = re.search(r"\d+", word)
    return int(found[0]) if found is not None else 0


def choose(wanted: Wanted, files: Iterable[str]) -> list[str]:
    """Return the parts of the wanted model, first part first.

    Raises ModelNotFound, which names the models that there are.
    """
    files = list(files)
    matching = matches(wanted, files)
    if len(matching) == 1:
        return matching[0]
    names = names_in(wanted.place, files)
    there = ", ".join(name for name, parts in names.items() if not matching or parts in matching) or "none"
    reason = f"{wanted.place!r} has {len(matching)} GGUF files for {wanted.file or wanted.tag or 'no tag'!r}"
    raise ModelNotFound(f"{reason}; choose one: {there}", param="model")


def matches(wanted: Wanted, files: Iterable[str]) -> list[list[str]]:
    """Return the parts of each model among files that may be the wanted one."""
    if wanted.file is not None:
        return [parts for model, parts in _grouped(files).items() if wanted.file in (model, *parts)]
    models = models_in(files)
    if wanted.tag is not None:
        return _tagged(models, wanted.tag)
    return next((tagged for tag in PREFERRED if (tagged := _tagged(models, tag))), list(models.values()))


def _tagged(models: Mapping[str, list[str]], tag: str) -> list[list[str]]:
    """Return the models with a tag; if none has it, those with the tag between other words of their names."""
    exact = [parts for model, parts in models.items() if (tag_of(model) or "").upper() == tag.upper()]
    word = re.compile(rf"(^|[-./]){re.escape(tag)}(?=[-.])", re.IGNORECASE)
    return exact or [parts for model, parts in models.items() if word.search(model)]
