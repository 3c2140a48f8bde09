"""The self-check: whether kernels give the known answers, bit for bit, on this machine."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import ferrum
from ferrum.core.errors import Unsupported
from ferrum.kernels.interface import Kernels
from ferrum.runtime.known_answers import answers, hash_of

TABLE: Final = Path(ferrum.__file__).parent / "assets" / "self-check" / "answers.json"
"""Hashes of the reference's answers, by the name of the check, and the `numerics_id` that they belong to."""


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The result of a self-check.

    Attributes:
        checked: number of checks.
        wrong: names of those with another answer.
        refused: names of the checks in addition whose operations the kernels lack.
        seconds: that it took.
    """

    checked: int
    wrong: tuple[str, ...]
    refused: tuple[str, ...]
    seconds: float


def self_check(kernels: Kernels) -> SelfCheck:
    """Compare the answers of kernels, which are used for nothing else, with the known ones."""
    begun = time.perf_counter()
    known = json.loads(TABLE.read_text())["answers"]
    found, refused = hashes(kernels)
    wrong = tuple(name for name, hash in found.items() if known.get(name) != hash)
    return SelfCheck(len(found), wrong, refused, time.perf_counter() - begun)


def hashes(kernels: Kernels) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the hash of each answer of kernels, which are used for nothing else, and the checks that they refuse."""
    found, refused = dict[str, str](), list[str]()
    with np.errstate(all="ignore"):
        for name, answer in answers(kernels):
            try:
                found[name] = hash_of([kernels.host(array) for array in answer()])
            except Unsupported:
                refused.append(name)
    return found, tuple(refused)
