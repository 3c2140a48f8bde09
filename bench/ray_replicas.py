"""Replicas on Ray Serve next to servers with one engine: prefix hits, throughput, and what the ingress costs.

    RAY_worker_niceness=0 ray start --head --num-cpus 4 --include-dashboard=false
    python bench/ray_replicas.py --ray-address auto --out bench/results/ray_replicas.json

The two servers of a comparison take turns, and each turn is compared within itself. The model has random weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from ferrum.bench.report import Document
from ferrum.bench.serve_options import USUAL_VOCABULARY, Arrivals, Level, Load, Target
from ferrum.cli.doctor import processor_name
from ferrum.core.errors import StepError
from ferrum.core.version import installed_version
from own_server import own_server, subject_of
from script import needs, positive, run_script

with needs("'ferrum-llm[ray]'"):
    import httpx
    import ray
    from ray import serve

    from ferrum.bench.serve_run import measure_server
    from ferrum.server.deploy.application import application
    from ferrum.server.deploy.scale import Scale

NAME: Final = "ferrum-bench"
PREFIXES: Final = 32
PREFIX_TOKENS: Final = 128
SETTLE_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasReport(Document):
    """A run. Pairs are one engine, then Ray Serve.

    Attributes:
        model, ferrum, ray, started, processor: what was measured, by what, when and where.
        prefix_hits: cached prompt tokens of the same requests.
        throughput: tokens per second of each turn: one engine with two threads, two replicas with one.
        first_token, step: seconds of each turn, one client: one engine and one replica, one thread each.
    """

    LAYOUT: ClassVar[int] = 1

    model: str
    ferrum: str
    ray: str
    started: str
    processor: str
    prefix_hits: tuple[int, ...]
    throughput: tuple[tuple[float, ...], ...]
    first_token: tuple[tuple[float, ...], ...]
    step: tuple[tuple[float, ...], ...]


def replicas() -> int:
    """Return the number of replicas that run."""
    return serve.status().applications[NAME].deployments["engines"].replica_states.get("RUNNING", 0)


def settle(count: int) -> None:
    """Wait for a number of replicas. Raises StepError."""
    until = time.monotonic() + SETTLE_SECONDS
    while replicas() != count:
        if time.monotonic() > until:
            raise StepError(f"{replicas()} replicas instead of {count} after {SETTLE_SECONDS:g} s")
        time.sleep(0.2)


@contextmanager
def deployed(model: str, options: Mapping[str, Any], port: int, scale: Scale) -> Iterator[str]:
    """Deploy a model inside the block; yield its base URL."""
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application(model, {**options, "threads": 1}, scale=scale), name=NAME)
    try:
        settle(scale.least)
        time.sleep(3.0)  # each replica has joined the ingress
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serve.delete(NAME)


def request(url: str, prompt: list[int], tokens: int) -> int:
    """Return the cached tokens of a prompt. Raises httpx.HTTPError."""
    model = httpx.get(f"{url}/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    usage = httpx.post(f"{url}/completions", json=body, timeout=300).raise_for_status().json()["usage"]
    if usage["completion_tokens"] != tokens:
        raise httpx.HTTPError(f"{usage['completion_tokens']} tokens instead of {tokens}")
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def prompt(seed: int, length: int) -> list[int]:
    """Return random token ids."""
    draw = Random(seed)
    return [draw.randrange(3, USUAL_VOCABULARY) for _ in range(length)]


def prefix_hits(url: str) -> int:
    """Return the cached tokens of four requests for each of the shared prefixes, eight at a time."""

    def one(number: int) -> int:
        return request(url, prompt(number % PREFIXES, PREFIX_TOKENS) + prompt(1000 + number, 16), 4)

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(one, range(4 * PREFIXES)))


def turns(urls: tuple[str, str], load: Load, series: int) -> tuple[list[Any], list[Any]]:
    """Return the summaries of both servers for each turn. The first turn is dropped; the order changes each time."""
    found: tuple[list[Any], list[Any]] = [], []
    for turn in range(series + 1):
        for place in (0, 1) if turn % 2 else (1, 0):
            target = Target(url=urls[place], vocabulary=USUAL_VOCABULARY)
            report = measure_server(target, replace(load, seed=turn), level=Level(), key=None, processor="", bar=False)
            if report.summary.failures:
                raise StepError(f"the server failed: {report.summary.failures}")
            if turn:
                found[place].append(report)
    return found


def main() -> None:
    """Measure; print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray-address", default="auto")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--port", type=positive, default=8123)
    parser.add_argument("--series", type=positive, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ray.init(address=given.ray_address, log_to_driver=False)
    with subject_of("", given.shape) as subject:
        report = measured(subject.name, subject.model, given.port, given.series)
    if given.out is not None:
        report.write(given.out)
    print(report)


def measured(name: str, model: str, port: int, series: int) -> ReplicasReport:
    """Measure all comparisons, one deployment after the other."""

    def of(pair: tuple[list[Any], list[Any]], value: Any) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(value(each) for each in arm) for arm in pair)

    options = {"quantize": "int8"}
    common = ("--quantize", "int8")
    one = Scale(replicas="1", replica_cpus=1)
    with deployed(model, options, port, one) as url, own_server(model, [*common, "--threads", "1"]) as plain:
        load = Load(arrivals=Arrivals.CLOSED, clients=1, requests=4, warmup=1, prompt_tokens=32, output_tokens=32)
        single = turns((plain.url, url), load, series)
    print("ingress: measured", file=sys.stderr)
    two = Scale(replicas="2", replica_cpus=1)
    with deployed(model, options, port, two) as url, own_server(model, [*common, "--threads", "2"]) as plain:
        load = Load(arrivals=Arrivals.CLOSED, clients=16, requests=16, warmup=0, prompt_tokens=64, output_tokens=32)
        many = turns((plain.url, url), load, series)
        hits = tuple(prefix_hits(each) for each in (plain.url, url))
    print("throughput and prefixes: measured", file=sys.stderr)
    return ReplicasReport(
        version=ReplicasReport.LAYOUT,
        model=name,
        ferrum=installed_version(),
        ray=ray.__version__,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor_name(),
        prefix_hits=hits,
        throughput=of(many, lambda each: each.summary.tokens_per_second),
        first_token=of(single, lambda each: each.summary.ttft.p50),
        step=of(single, lambda each: each.summary.tpot.p50),
    )


if __name__ == "__main__":
    run_script(main)
