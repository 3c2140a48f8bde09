"""Packed directories of tiny models, and their outputs."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np

from ferrum.core.step import Rows, Span, StepBatch, Want
from ferrum.runtime.packing import pack_directory
from ferrum.sources.model_source import DirectoryModel
from ferrum.verbs.load_executor import load_executor
from shared_models import folder
from tiny import directory_of, find, tokens_of


@cache
def packed_of(name: str, scheme: str, dtype: str = "auto") -> Path:
    target = folder(f"packed-{name}") / "out"
    pack_directory(DirectoryModel(directory_of(find(name))), target, scheme, dtype)
    return target


def copy_of(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target)
    return target


def logits_of(directory: Path, name: str, **options) -> np.ndarray:
    with load_executor(directory, **options) as executor:
        span = Span("s", 0, tuple(tokens_of(find(name), 40)), Want.LOGITS, Rows.ALL)
        logits: np.ndarray = executor.submit(StepBatch((span,))).result().results[0].logits
        return logits
