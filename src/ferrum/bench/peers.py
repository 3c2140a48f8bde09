"""Other engines on the same workloads: each peer's own script, run in its own environment between ferrum's series.

Nothing is downloaded or installed here. A script appends JSON lines {"variant", "metric", "unit", "median"} to the file
that $RESULTS names; metrics are called as workloads are.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, Self

from ferrum.bench.report import Cell, PeerCell
from ferrum.core.errors import ConfigError, RequestError, Unsupported
from ferrum.core.json_record import JsonRecord


@dataclass(frozen=True, slots=True)
class Peer:
    """How a peer is measured.

    Attributes:
        script: the script's file name.
        module: what its environment must be able to import.
        arguments: its arguments, with `{size}` ("0.6b") and `{format}`.
        formats: ferrum's weight formats and what the peer calls the same precision.
        variants: arguments of the settings among which the best counts.
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
        {"bfloat16": "bf16", "int8": "q8_0", "int4": "q4_0"},
        _LLAMA_VARIANTS,
    ),
    "vllm-cpu": Peer("vllm_cpu.py", "vllm", ("bench", "qwen3-{size}{format}"), {"bfloat16": "", "int8": "-w8a8"}),
    "openvino": Peer(
        "openvino_genai_bench.py",
        "openvino_genai",
        ("bench", "ov-{size}-{format}"),
        {"bfloat16": "fp16", "int8": "int8", "int4": "int4"},
    ),
    "mistral.rs": Peer(
        "mistralrs_bench.py",
        "mistralrs",
        ("bench", "{size}", "{format}"),
        {"bfloat16": "bf16", "int8": "q8_0", "int4": "q4k"},
    ),
}
"""The peers that have scripts."""

Run = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]
"""Runs a command with extra environment variables: its exit code and the last line it said on standard error."""

LONGEST: Final = 3600.0
"""Seconds after which a peer's script is given up."""


def run_command(command: Sequence[str], extra: Mapping[str, str]) -> tuple[int, str]:
    """See `Run`."""
    added = [f"{name}={value}" for name, value in extra.items()]  # env(1) adds to what the script inherits
    try:
        done = subprocess.run(
            ["env", *added, *command], capture_output=True, text=True, errors="replace", check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return 1, f"it did not end within {LONGEST:.0f} s"
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


@dataclass(frozen=True, slots=True)
class Figure(JsonRecord):
    """What a line of results tells.

    Attributes:
        metric: what was measured.
        median: tokens per second, above 0.
    """

    metric: str
    median: float

    def __post_init__(self) -> None:
        if self.median <= 0:
            raise RequestError(f"must be above 0, not {self.median}", param="median")


def figures_of(results: bytes) -> list[Figure]:
    """The figures among a script's results: the lines in tokens per second.

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
    """A peer as the command line names it.

    Attributes:
        name: a key of `PEERS`.
        format: ferrum's name of the precision that the peer runs in; None: that of most of ferrum's weights.
        python: the interpreter of the environment that the peer is installed in; None: not told.
    """

    name: str
    format: str | None
    python: Path | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME[:FORMAT]=PYTHON`, as `llama.cpp:int8=venv/bin/python`."""
        what, _, python = text.partition("=")
        name, _, format = what.partition(":")
        return cls(name, format or None, Path(python) if python else None)


@dataclass(frozen=True, slots=True)
class InstalledPeer:
    """A peer that can be run here.

    Attributes:
        name: a key of `PEERS`.
        format: see `PeerChoice`.
        size: of the model, as the scripts call it.
        command: interpreter and script.
        run: runs a command.
    """

    name: str
    format: str | None
    size: str
    command: tuple[str, str]
    run: Run


def find_peer(choice: PeerChoice, *, shape: str | None, scripts: Path | None, run: Run = run_command) -> InstalledPeer:
    """The peer that is meant.

    Args:
        choice: which.
        shape: ferrum's name of the shape that is measured; None for a model of the user's own.
        scripts: the folder of the peers' scripts.
        run: runs a command.

    Raises:
        ConfigError: no such peer, or a format or shape that it is not measured in.
        Unsupported: script, interpreter or the peer itself are not there.
    """
    name = choice.name
    if name not in PEERS:
        raise ConfigError(f"there is no peer {name!r}; there are {', '.join(PEERS)}", param="peer")
    if choice.format is not None:
        _spelled(name, choice.format)
    if shape is None or "-" not in shape:
        raise ConfigError("peers are measured on the shapes of real models only", param="shape")
    script = _existing(name, scripts and scripts / PEERS[name].script, "--peer-scripts")
    interpreter = _existing(name, choice.python, f"--peer {name}=PYTHON")
    module = PEERS[name].module
    found, said = run(
        [interpreter, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec({module!r}))"], {}
    )
    if found:
        raise Unsupported(f"peer {name}", f"{interpreter} has no {module} {said}".strip())
    return InstalledPeer(name, choice.format, shape.partition("-")[2], (interpreter, script), run)


class PeerSeries:
    """A peer's samples so far.

    Args:
        installed: the peer.
        format: the format of most of ferrum's weights: the peer's, where none was chosen.
        threads: that ferrum computes with.
        tell: told what is being measured.

    Raises:
        ConfigError: a format that the peer is not measured in.
    """

    def __init__(self, installed: InstalledPeer, format: str, threads: int, tell: Callable[[str], object]) -> None:
        peer = PEERS[installed.name]
        spelled = _spelled(installed.name, installed.format or format)
        values = {"size": installed.size, "format": spelled}
        command = [*installed.command, *(each.format(**values) for each in peer.arguments)]
        self.name = f"{installed.name} {spelled}".strip()
        self._tell = tell
        self._commands = [(" ".join(variant), [*command, *variant]) for variant in peer.variants]
        self._threads = threads
        self._run = installed.run
        self._samples: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.failure: Unsupported | None = None
        """Of the last turn in which the script failed, or told nothing or no results. What else was measured stands."""

    @property
    def turns(self) -> list[Callable[[], None]]:
        """Of each variant, one that takes one sample of everything."""
        return [partial(self._turn, variant, command) for variant, command in self._commands]

    def _turn(self, variant: str, command: Sequence[str]) -> None:
        self._tell(f"peer {self.name} {variant}".strip())
        try:
            figures = self._figures(command)
        except Unsupported as failure:
            self.failure = failure
            self._tell(str(failure))
            return
        for figure in figures:
            self._samples[figure.metric, variant].append(figure.median)

    def _figures(self, command: Sequence[str]) -> list[Figure]:
        """What a run of the script measured.

        Raises:
            Unsupported: it failed, or told nothing or no results.
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
                raise Unsupported(f"peer {self.name}", f"its script wrote what is no result: {error}") from None
            if not figures:
                raise Unsupported(f"peer {self.name}", f"its script wrote no figure in tok/s: {said}".rstrip(": "))
            return figures

    def cells(self, measured: Sequence[Cell]) -> tuple[PeerCell, ...]:
        """The peer beside ferrum: of every workload that both measured its best variant."""
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
    """What a peer calls a format."""
    formats = PEERS[name].formats
    if format not in formats:
        raise ConfigError(f"{name} is not measured in {format}, only in {', '.join(formats)}", param="peer")
    return formats[format]


def _existing(peer: str, path: Path | None, option: str) -> str:
    if path is None:
        raise Unsupported(f"peer {peer}", f"it is not installed by ferrum: say with {option} where it is")
    if not path.is_file():
        raise Unsupported(f"peer {peer}", f"{path} is not there, see {option}")
    return str(path)
