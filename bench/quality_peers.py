"""Quality of ferrum and llama.cpp on the same text, files and truth, in one run.

    python bench/quality_peers.py FILE.gguf --python ENV/bin/python --out bench/results/quality-peers.json

Two truths, both ferrum's float32: the weights of FILE, for FILE as each engine serves it; and the same weights off the
file's grid, for what both quantisers make of them. Off its grid means: each weight of a quantised tensor plus uniform
noise of up to half its block's step, since a file's own grid flatters formats like it. ENV needs llama-cpp-python; this
process needs the package `gguf`. `quality_llamacpp.py` runs in ENV.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from ferrum.bench.quality import Predictor, QualityReport, Subject
from ferrum.bench.quality_run import DEFAULT_TEXT, config_of, reference_of, side_by_side
from ferrum.bench.report import Document, Origin
from ferrum.cli.bench import print_quality_report
from ferrum.cli.doctor import processor_name
from ferrum.core.config import QUANTIZATIONS, ModelConfig
from ferrum.engine.progress import loading_bar, progress_bar
from ferrum.kernels.operations import F32
from script import needs, run_script

with needs("gguf"):
    from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

PEER = Path(__file__).with_name("quality_llamacpp.py")
STEP_FIRST = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Types whose blocks begin with their step as float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPeers(Document):
    """Reports on FILE as it is, and on its weights off its grid."""

    LAYOUT: ClassVar[int] = 1

    published: QualityReport
    off_grid: QualityReport


def write_off_grid(file: Path, out: Path) -> None:
    """Write the weights of a GGUF file as float32, moved off its grid."""
    reader, draws = GGUFReader(str(file)), np.random.default_rng(0)
    writer = GGUFWriter(str(out), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        is_list = field.types[0] is GGUFValueType.ARRAY
        value = 0 if name == "general.file_type" else field.contents()
        writer.add_key_value(name, value, field.types[0], field.types[-1] if is_list else None)
    for tensor in sorted(reader.tensors, key=lambda each: each.name):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        block, nbytes = GGML_QUANT_SIZES[tensor.tensor_type]
        if block > 1:
            if tensor.tensor_type.name not in STEP_FIRST:
                raise SystemExit(f"{tensor.name}: no rule for the step of {tensor.tensor_type.name}")
            heads = np.asarray(tensor.data).view(np.uint8).reshape(-1, nbytes)[:, :2]
            steps = np.abs(np.ascontiguousarray(heads).view(np.float16).astype(np.float32))
            noise = draws.uniform(-0.5, 0.5, (len(steps), block)).astype(np.float32)
            values = (values.reshape(-1, block) + steps * noise).reshape(values.shape)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(python: str, source: Path, out: Path, kind: str) -> None:
    """Write a file of that type with llama.cpp's quantiser, whose log is shown if it fails."""
    done = subprocess.run([python, str(PEER), "quantize", source, out, kind], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\n{kind}: not quantised")


class LlamaCpp:
    """A `Predictor` in a process of its environment.

    Args:
        python: interpreter that has llama-cpp-python.
        file: the model.
        adapter: a GGUF file that changes it, or None.
    """

    def __init__(self, python: str, file: Path, adapter: Path | None = None) -> None:
        self._file = file
        command = [python, str(PEER), "logits", str(file), *([] if adapter is None else [str(adapter)])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def subject(self) -> Subject:
        matrices = [each for each in GGUFReader(str(self._file)).tensors if len(each.shape) > 1]
        nbytes = sum(int(each.n_bytes) for each in matrices)
        bits = 8 * nbytes / sum(int(each.n_elements) for each in matrices)
        return Subject(model=self._file.name, format="llama.cpp", kv_format="float16", weight_bytes=nbytes, bits=bits)

    def logits(self, tokens: Sequence[int]) -> F32:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # the missing answer is reported
            self._process.stdin.write(json.dumps([*map(int, tokens)]).encode() + b"\n")
            self._process.stdin.flush()
        size = int(np.frombuffer(self._read(4), np.uint32)[0])
        return np.frombuffer(self._read(4 * size * len(tokens)), np.float32).reshape(-1, size)

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        if len(data) < count:
            hint = "where the system does not allow AMX, compile it as docs/bench.md says"
            raise SystemExit(f"llama.cpp ended on {self._file} ({hint})")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Named:
    """A ferrum model under a name that a table with two engines needs."""

    def __init__(self, model: Predictor) -> None:
        self._model = model
        self.logits = model.logits

    @property
    def subject(self) -> Subject:
        subject = self._model.subject
        return replace(subject, model=Path(subject.model).name, format=f"ferrum, {subject.format}")


def report(
    text: Path, reference: ModelConfig, judged: Sequence[ModelConfig], python: str, files: Sequence[Path]
) -> QualityReport:
    """Return the report of ferrum's models and llama.cpp's files against one truth."""
    with ExitStack() as stack:
        peers = [stack.enter_context(LlamaCpp(python, file)) for file in files]
        trial = stack.enter_context(side_by_side(text.read_text("utf-8"), reference, judged, loading_bar))
        every = sorted([*map(Named, trial.judged), *peers], key=lambda each: each.subject.model)
        trial = replace(trial, judged=every)
        bar = progress_bar(sys.stderr.isatty(), total=trial.passes, desc="forward passes")
        stack.callback(bar.close)
        origin = Origin.of(trial.reference.executor.traits, processor_name())
        found = trial.run(text.name, origin, bar.update)
        return replace(found, reference=Named(trial.reference).subject)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="the published GGUF file")
    parser.add_argument("--python", required=True, help="interpreter of an environment with llama-cpp-python")
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="UTF-8 text; default: that of the package")
    parser.add_argument("--make", nargs="*", default=["q8_0", "q4_k_m", "q4_0"], help="types that llama.cpp makes")
    parser.add_argument("--quantize", nargs="*", help="ferrum's formats; default: those of --make that it has")
    parser.add_argument("--work", type=Path, help="folder for GGUF files, which are kept; default: a temporary one")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    own = [each for each in given.make if each in QUANTIZATIONS] if given.quantize is None else given.quantize
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        base = work / "off-grid-f32.gguf"
        if not base.exists():
            write_off_grid(given.file, base)
        made = [work / f"off-grid-{kind}.gguf" for kind in given.make]
        for kind, path in zip(given.make, made, strict=True):
            if not path.exists():
                quantize(given.python, base, path, kind)
        file = str(given.file)
        published = report(given.text, reference_of(file, {}), [config_of(file, {})], given.python, [given.file])
        judged = [*(config_of(str(path), {}) for path in made), *(config_of(str(base), {"quantize": q}) for q in own)]
        off_grid = report(given.text, reference_of(str(base), {}), judged, given.python, made)
    for each in (published, off_grid):
        print_quality_report(each)
        print()
    if given.out is not None:
        QualityPeers(version=QualityPeers.LAYOUT, published=published, off_grid=off_grid).write(given.out)


if __name__ == "__main__":
    run_script(main)
