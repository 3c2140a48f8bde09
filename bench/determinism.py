"""Who keeps their bits: the same requests in other company, and how many answers differ.

    python bench/determinism.py                                            # 20 requests, ferrum and llama.cpp
    python bench/determinism.py --engine ferrum --planted                  # must find a planted reordering
    python bench/determinism.py --engine ferrum --engine transformers --model experts
    python bench/determinism.py --all --requests 200 --tokens 24 --out report.json
    python bench/determinism_page.py                                       # the tables and the picture

Every request is answered alone first. Then each condition answers all again in another process, and counts the answers
with other tokens or other log-probabilities of the same tokens. Peers run in environments of a cache folder, which are
made at first use. --out keeps each result as it comes, and a second run continues. Exits with 1 if ferrum differs
anywhere. Counts need no quiet machine; speeds are tokens per processor second.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from determinism_engines import ENGINES, EXPORT, TRANSFORMERS, Engine, amx_refused, interpreter, run_engine
from determinism_job import Answer, Job
from determinism_models import MODELS, TINY, directory_of, openvino_of, tokenizer_of
from determinism_requests import COUNT, digest, token_ids
from ferrum.cli.doctor import processor_name
from ferrum.cli.tables import print_table
from ferrum.core.version import installed_version
from script import positive, run_script

CONDITIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "restart": {},
    "batch of 8": {"batch": 8},
    "batch of 32": {"batch": 32},
    "full queue": {"batch": 32, "crowded": True},
    "prefix hit": {"warm": True},
    "drafts": {"drafts": True},
    "2 threads": {"threads": 2},
    "other tier": {"other_tier": True},
    "int8 KV, batch of 32": {"batch": 32, "int8_kv": True},
}
"""Changes of a job by condition. The answers are compared with those of each request alone, the last ones with int8
keys and values too."""

ALONE, ALONE_INT8 = "alone", "int8 KV, alone"
BASES: Final[Mapping[str, Mapping[str, Any]]] = {ALONE: {}, ALONE_INT8: {"int8_kv": True}}
QUICK: Final = 20
CACHE: Final = Path.home() / ".cache" / "ferrum-determinism"


def compare(before: Sequence[Answer], after: Sequence[Answer]) -> dict[str, Any]:
    """Count the answers with other tokens, and those with other log-probabilities while the tokens are the same.

    `largest` is the largest difference of a log-probability. Positions after the first other token do not count, since
    their contexts differ.
    """
    tokens = logprobs = 0
    largest = 0.0
    for (ours, known), (theirs, seen) in zip(before, after, strict=True):
        tokens += ours != theirs
        same = next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), len(ours))
        gaps = [abs(a - b) for a, b in zip(known[:same], seen[:same], strict=True)]
        largest = max([largest, *gaps])
        logprobs += any(gaps) or same < len(ours)
    return {"tokens": tokens, "logprobs": logprobs, "largest": largest}


def measure(
    engine: Engine, python: Path, base: Job, limit: float, conditions: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield a row for the requests alone if a condition is compared with them, and one for each condition."""
    alone: dict[str, dict[str, Any]] = {}
    for name in conditions:
        wanted = ALONE_INT8 if name.startswith("int8") else ALONE
        if wanted not in alone:
            alone[wanted] = known = run_engine(engine, python, replace(base, **BASES[wanted]), limit)
            if wanted == ALONE:
                yield {"condition": ALONE, **_row(known, known, base)}
        if name != ALONE:
            found = run_engine(engine, python, replace(base, **CONDITIONS[name]), limit)
            yield {"condition": name, **_row(alone[wanted], found, base)}


def _row(known: Mapping[str, Any], found: Mapping[str, Any], base: Job) -> dict[str, Any]:
    for record in (known, found):
        for reason in ("failed", "not_offered"):
            if reason in record:
                return {reason: record[reason]}
    speed = len(base.prompts) * base.max_tokens / found["seconds"]
    counts = compare(known["answers"], found["answers"])
    return {**counts, "tokens_per_cpu_second": round(speed, 2), "seen": found["seen"]}


class Report:
    """Rows by engine and model, written to a file as they come.

    Args:
        path: of the file; None: rows are only printed.
        setting: what all rows have in common; a file with another one is refused.
    """

    def __init__(self, path: Path | None, setting: dict[str, Any]) -> None:
        self.path, self.rows = path, list[dict[str, Any]]()
        self.setting = setting
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            if found["setting"] != setting:
                raise SystemExit(f"{path} has another setting: {found['setting']}, not {setting}")
            self.rows = found["rows"]

    def missing(self, run: Mapping[str, Any], conditions: Sequence[str]) -> list[str]:
        """Return the conditions without a result for these values of a row."""
        known = {row["condition"] for row in self.rows if run.items() <= row.items()}
        return [name for name in conditions if name not in known]

    def add(self, row: dict[str, Any]) -> None:
        """Add a row in place of an earlier one of this engine, model and condition, and write the file."""
        self.rows = [each for each in self.rows if _place(each) != _place(row)] + [row]
        if self.path is not None:
            self.path.write_text(json.dumps({"setting": self.setting, "rows": self.rows}, indent=1) + "\n")


def _place(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["engine"], row["model"], row["condition"]


def prompts_of(model: str, cache: Path, count: int) -> list[list[int]]:
    """Return the requests as token ids of a model."""
    return token_ids(str(tokenizer_of(model, cache)), count)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows: answers that differ, and by how much."""
    head = ("ENGINE", "MODEL", "CONDITION", "OTHER TOKENS", "OTHER LOGPROBS", "LARGEST", "TOK/CPU S")
    lines = []
    for row in rows:
        cells = [row["failed"] if "failed" in row else row.get("not_offered", ""), "", "", ""]
        if "tokens" in row:
            counts = [f"{row[name]} of {row['requests']}" for name in ("tokens", "logprobs")]
            cells = [*counts, f"{row['largest']:.2g}", f"{row['tokens_per_cpu_second']:.1f}"]
        lines.append((row["engine"], row["model"], row["condition"], *cells))
    print_table([head, *lines])


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=ENGINES, help="default: ferrum and llama.cpp")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: smollm2")
    parser.add_argument("--condition", action="append", choices=CONDITIONS, help="default: all")
    parser.add_argument("--all", action="store_true", help="all engines and models")
    parser.add_argument("--requests", type=positive, default=QUICK, help=f"at most {COUNT} (default: {QUICK})")
    parser.add_argument("--tokens", type=positive, default=16, help="length of every answer (default: 16)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder of models and environments ({CACHE})")
    parser.add_argument("--python", action="append", default=[], metavar="ENVIRONMENT=PYTHON", help="use this one")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds of a condition (default: 3600)")
    parser.add_argument(
        "--planted", action="store_true", help="let ferrum add one sum in another order for several rows"
    )
    parser.add_argument("--out", type=Path, help="file of the report")
    options = parser.parse_args()
    if options.requests > COUNT:
        parser.error(f"argument --requests: there are {COUNT}")
    return options


def place_of(name: str, model: str, options: argparse.Namespace) -> tuple[Path, Path]:
    """Return an engine's interpreter and its form of a model, both made first if they are missing."""
    engine, python, given = ENGINES[name], Path(sys.executable), dict(each.split("=", 1) for each in options.python)
    file = MODELS[model](options.cache)
    if engine.environment is not None:
        known = given.get(engine.environment)
        python = Path(known) if known else interpreter(engine.environment, engine.packages, options.cache)
    if engine.form == "directory" or (engine.form == "openvino" and model != "smollm2"):  # OpenVINO reads that file
        converter = given.get("transformers") or interpreter("transformers", TRANSFORMERS, options.cache)
        file = directory_of(model, file, options.cache, Path(converter))
    if engine.form == "openvino" and file.is_dir():
        converter = given.get("openvino-export") or interpreter("openvino-export", EXPORT, options.cache)
        file = openvino_of(model, file, options.cache, Path(converter))
    return python, file


def run_all(options: argparse.Namespace, report: Report) -> None:
    """Measure what the report lacks."""
    engines = options.engine or (list(ENGINES) if options.all else ["ferrum", "llama.cpp"])
    models = options.model or (list(MODELS) if options.all else [TINY if options.planted else "smollm2"])
    for model in models:
        prompts = prompts_of(model, options.cache, options.requests)
        for name in engines:
            run = {"engine": name, "model": model, "requests": options.requests, "length": options.tokens}
            wanted = report.missing(run, options.condition or [ALONE, *CONDITIONS])
            if not wanted:
                continue
            python, file = place_of(name, model, options)
            settings = dict(ENGINES[name].settings)
            if options.planted and name == "ferrum":
                settings |= {"planted": True, "kernels": "reference"}
            job = Job(str(file), prompts, options.tokens, settings=settings)
            for row in measure(ENGINES[name], python, job, options.limit, wanted):
                print_rows([{**run, **row}])
                report.add({**run, "digest": digest(prompts), **row})


def main() -> int:
    """Measure, print and write."""
    options = parse()
    setting = {
        "machine": processor_name(),
        "ferrum": installed_version(),
        "packages": {name: engine.packages[:2] for name, engine in ENGINES.items() if engine.packages},
    }
    report = Report(options.out, json.loads(json.dumps(setting)))
    if amx_refused():
        print("this system shows AMX and does not allow it; llama.cpp compiled with it would die", file=sys.stderr)
    run_all(options, report)
    ours = [row for row in report.rows if row["engine"] == "ferrum"]
    return 1 if any(row.get("logprobs", row.get("failed")) for row in ours) else 0


if __name__ == "__main__":
    run_script(main)
