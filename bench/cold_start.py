"""Measure the time from the start of a process to its first token, stage by stage.

    python bench/cold_start.py --out bench/results/cold_start.json

A model of the shape of Qwen3-0.6B with random weights is packed to int8, with a byte-level tokenizer of 150,000 entries
trained here; its files are in the page cache. A process is then started repeatedly: from text and from token ids with
that model, from text with the built-in one. Each prints the time of every stage by a clock that all processes share.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ferrum.bench.shapes import shape_config
from ferrum.runtime.packing import pack_directory
from ferrum.sources.hub import BUILT_IN
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.text.fast_tokenizer import fast_form
from script import positive, run_script

ENTRIES: Final = 150_000
SHAPE: Final = "qwen3-0.6b"

_BEGIN: Final = """
import json, sys, time
marks = [("interpreter", time.monotonic())]
def mark(name):
    marks.append((name, time.monotonic()))
import ferrum
mark("import ferrum")
"""

_IDS: Final = """
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling, Span, StepBatch, Want
from ferrum.verbs.load_executor import load_executor
mark("import numpy and the runtime")
executor = load_executor(sys.argv[1])
mark("weights, pool and program")
prompt = list(range(100, 116))
sampling = Sampling(SamplingParams(temperature=0), 0, len(prompt), prompt)
step = executor.submit(StepBatch((Span("first", 0, tuple(prompt), Want.TOKEN, sampling=sampling),))).result()
assert len(step.results[0].tokens) == 1
mark("first token")
"""

_TEXT: Final = """
from ferrum import LLM, SamplingParams
from ferrum.text import tokenizer
import ferrum.client.client_base
import ferrum.runtime.load
mark("import numpy, the engine and the runtime")
load_tokenizer = tokenizer.load_tokenizer
def timed_tokenizer(files):
    mark("files of the model")
    loaded = load_tokenizer(files)
    mark("tokenizer")
    return loaded
tokenizer.load_tokenizer = timed_tokenizer
llm = LLM(sys.argv[1])
mark("weights, pool and program")
deltas = llm.stream("def first(tokens):", SamplingParams(max_tokens=2, temperature=0))
while not next(deltas).token_ids:
    pass
mark("first token")
deltas.close()
llm.close()
"""

CHILDREN: Final = {
    kind: _BEGIN + middle + "print(json.dumps(marks))" for kind, middle in (("ids", _IDS), ("text", _TEXT))
}
"""Programs that a process runs; each prints the clock at every stage."""


def make_tokenizer(entries: int) -> dict[str, Any]:
    """A `tokenizer.json`: the 256 bytes, and merges of two entries drawn among those before, the early ones most."""
    rng = random.Random(0)
    tokens = [_shown(byte) for byte in range(256)]
    known, merges = set(tokens), []
    while len(tokens) < entries:
        left, right = (tokens[int(len(tokens) * rng.random() ** 2)] for _ in range(2))
        if len(left) + len(right) <= 12 and left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append([left, right])
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    model = {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": bytes_of,
        "decoder": bytes_of,
        "model": {**model, "byte_fallback": False, "fuse_unk": False, "ignore_merges": False},
    }


def _shown(byte: int) -> str:
    """A byte as byte-level vocabularies write it: itself where it is printable, else a letter from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in plain else chr(256 + [b for b in range(256) if b not in plain].index(byte))


def make_model(directory: Path) -> None:
    """The packed model with its tokenizer, as packing writes it."""
    pack_directory(RandomCheckpoint(SHAPE, shape_config(SHAPE)), directory, "int8")
    tokenizer = json.dumps(make_tokenizer(ENTRIES), ensure_ascii=False).encode()
    (directory / "tokenizer.json").write_bytes(fast_form(tokenizer))


def start(model: str, kind: str) -> dict[str, float]:
    """One process: seconds to the first token, and of each part of the way."""
    begun = time.monotonic()
    command = [sys.executable, "-c", CHILDREN[kind], model]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    parts, last = {}, begun
    for name, at in json.loads(done.stdout.splitlines()[-1]):
        parts[name], last = at - last, at
    return {"total": last - begun, **parts}


def measure(model: str, kind: str, count: int) -> dict[str, Any]:
    """Medians over several processes, and every total."""
    runs = [start(model, kind) for _ in range(count + 1)][1:]  # the first one warms the page cache
    parts = {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}
    return {"median": parts, "totals": sorted(round(run["total"], 4) for run in runs)}


@contextmanager
def asked(description: str) -> Iterator[tuple[argparse.Namespace, Path]]:
    """The options of a script that measures starts, and the packed model, there for the block at least."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=positive, default=7, help="starts of each kind")
    parser.add_argument("--model", type=Path, help="where the packed model is kept, or made")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model or Path(scratch) / "packed"
        if not directory.exists():
            make_model(directory)
        yield options, directory


def main() -> None:
    with asked(__doc__) as (options, directory):
        cases = {"token ids": (str(directory), "ids"), "text": (str(directory), "text"), "built-in": (BUILT_IN, "text")}
        report = {name: measure(model, kind, options.count) for name, (model, kind) in cases.items()}
    for name, case in report.items():
        print(f"{name}: {case['median']['total']:.3f} s (of {case['totals'][0]:.3f} to {case['totals'][-1]:.3f})")
        for part, seconds in case["median"].items():
            print(f"    {seconds:7.3f}  {part}")
    if options.out:
        host = {"machine": platform.machine(), "python": platform.python_version()}
        options.out.write_text(
            json.dumps({"shape": SHAPE, "entries": ENTRIES, **host, "cases": report}, indent=1) + "\n"
        )


if __name__ == "__main__":
    run_script(main)
