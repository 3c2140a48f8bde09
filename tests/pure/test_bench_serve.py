"""`ferrum bench serve`: arrivals, broken streams, and figures of timelines written by hand."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from ferrum.bench import serve_client
from ferrum.bench.serve_client import Timeline
from ferrum.bench.serve_options import Level, Load, Planned, Target, plan
from ferrum.bench.serve_report import ServeReport, Spread, Summary
from ferrum.bench.serve_run import completed, run_load
from ferrum.core.errors import ConfigError, RequestError


def moments(**load: Any) -> list[float]:
    return [each.at for each in plan(Load(**load))]


def timeline(planned: float, *pieces: float, error: str | None = None, **changes: Any) -> Timeline:
    """Return a request that was sent when due, with one token per piece."""
    values = {"sent": planned, "end": pieces[-1] if pieces else planned, "prompt_tokens": 10, "tokens": len(pieces)}
    return Timeline(planned=planned, pieces=pieces, error=error, **{**values, **changes})


def test_constant_arrivals_are_even_and_warm_up_is_extra():
    assert moments(arrivals="constant", rate=4.0, requests=3, warmup=2) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_bursts_keep_the_average_rate():
    assert moments(arrivals="burst", rate=4.0, burst=2, requests=6, warmup=0) == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]


def test_gaps_of_poisson_arrivals_are_exponential():
    """Their standard deviation is their mean, and 1/e of them are longer."""
    at = moments(rate=5.0, requests=20_000, warmup=0)
    gaps = [after - before for before, after in itertools.pairwise([0.0, *at])]
    assert mean(gaps) == pytest.approx(0.2, rel=0.03) and stdev(gaps) == pytest.approx(0.2, rel=0.03)
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, abs=0.01)
    few = [moments(rate=5.0, requests=20, warmup=0, seed=seed) for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2]


def test_lengths_vary_by_the_spread():
    made = plan(Load(requests=2000, prompt_tokens=100, output_tokens=10, spread=0.5))
    prompts, outputs = {each.prompt_tokens for each in made}, {each.max_tokens for each in made}
    assert (min(prompts), max(prompts)) == (50, 150) and outputs == set(range(5, 16))
    assert {each.prompt_tokens for each in plan(Load(requests=20, prompt_tokens=100))} == {100}


def test_a_trace_is_sent_in_the_order_of_its_times(tmp_path: Path):
    lines = [Planned(2.5, 30, 4), Planned(0.5, 10, 2), Planned(1.0, 20, 3)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n\n".join(each.to_json() for each in lines))
    made = plan(Load(arrivals="trace", trace=str(path), warmup=1))
    assert list(made) == [lines[1], lines[2], lines[0]]
    assert plan(Load(arrivals="trace", trace=str(path), warmup=1, requests=1)) == made[:2]
    with pytest.raises(ConfigError, match="too few"):
        plan(Load(arrivals="trace", trace=str(path), warmup=1, requests=3))
    for broken in ("nothing", '{"at": -1, "prompt_tokens": 1, "max_tokens": 1}', '{"at": 1}', "[1]"):
        path.write_text(broken)
        with pytest.raises(ConfigError) as refused:
            plan(Load(arrivals="trace", trace=str(path), warmup=0))
        assert refused.value.param == "trace"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", 0.0),
        ("rate", math.nan),
        ("rate", math.inf),
        ("burst", 0),
        ("spread", 1.0),
        ("arrivals", "often"),
        ("trace", "x"),
    ],
)
def test_an_invalid_load_is_refused(name: str, value: Any):
    with pytest.raises(ConfigError) as refused:
        Load(**{name: value})
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("arrivals", "option"),
    [("closed", "rate"), ("trace", "rate"), ("poisson", "burst"), ("constant", "clients"), ("trace", "prompt_tokens")],
)
def test_options_without_effect_on_the_arrivals_are_refused(arrivals: str, option: str):
    trace = {"trace": "x"} if arrivals == "trace" else {}
    with pytest.raises(ConfigError, match=f"no effect on {arrivals}") as refused:
        Load(**{"arrivals": arrivals, option: 3, **trace})
    assert refused.value.param == option


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "127.0.0.1:8000"),
        ("url", "ftp://there/v1"),
        ("url", "http://there:99999/v1"),
        ("url", "http://there:0/v1"),
        ("url", "http://[::1"),
        ("url", "http://there/v1?version=1"),
        ("url", "http://me:secret@there/v1"),
        ("vocabulary", 3),
        ("endpoint", "both"),
        ("timeout", 0.0),
    ],
)
def test_an_invalid_target_is_refused(name: str, value: Any):
    with pytest.raises(ConfigError) as refused:
        Target(**{"url": "http://there/v1", "model": "m", name: value})
    assert refused.value.param == name


class Server:
    """A server that answers once `crowd` requests have arrived."""

    def __init__(self, crowd: int) -> None:
        self.crowd, self.live, self.most = crowd, 0, 0
        self.crowded = asyncio.Event()
        self.begun = time.perf_counter()

    def clock(self) -> float:
        return time.perf_counter() - self.begun

    async def send(self, planned: Planned, due: float) -> Timeline:
        self.live += 1
        self.most = max(self.most, self.live)
        sent = self.clock()
        if self.live == self.crowd:
            self.crowded.set()
        await self.crowded.wait()
        await asyncio.sleep(0)
        self.live -= 1
        return timeline(due, self.clock(), sent=sent, tokens=planned.max_tokens)


def test_an_open_loop_sends_without_waiting_and_counts_from_the_due_time():
    server = Server(12)
    made = [Planned(0.002 * place, 1, place + 1) for place in range(12)]
    ended: list[int] = []
    timelines = asyncio.run(run_load(made, server.send, server.clock, done=lambda: ended.append(1)))
    assert server.most == 12 and len(ended) == 12
    assert [each.planned for each in timelines] == [each.at for each in made]
    assert [each.tokens for each in timelines] == list(range(1, 13))
    assert all(each.sent >= each.planned for each in timelines)


def test_a_closed_loop_has_one_request_per_client():
    server = Server(3)
    timelines = asyncio.run(run_load([Planned(0, 1, 1)] * 10, server.send, server.clock, clients=3))
    assert server.most == 3
    ends = sorted(each.planned + each.e2e for each in timelines)
    for place, each in enumerate(timelines[3:]):
        assert each.planned >= ends[place] - 1e-9, "one is due when another has been answered"


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ('{"error": null, "choices": null, "usage": null}', None),
        (
            '{"choices": [{"text": null, "delta": null}], "usage": {"completion_tokens": null, "prompt_tokens": ""}}',
            None,
        ),
        ('{"error": {"message": "x"}}', "error in the stream"),
        ("[1]", "not an OpenAI stream"),
        ('"text"', "not an OpenAI stream"),
        ('{"choices": {"0": 1}}', "not an OpenAI stream"),
        ('{"choices": [1]}', "not an OpenAI stream"),
        ('{"choices": [{"delta": "x"}]}', "not an OpenAI stream"),
        ('{"usage": 7}', "not an OpenAI stream"),
        ("{", "not an OpenAI stream"),
        ("[" * 100_000, "not an OpenAI stream"),
    ],
)
def test_a_broken_stream_fails_one_request(monkeypatch: pytest.MonkeyPatch, event: str, error: str | None):
    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield f'data: {{"choices": [{{"text": "a"}}]}}\n\ndata: {event}\n\ndata: [DONE]\n\n'.encode()

    monkeypatch.setattr(serve_client, "exchange", answer)
    client = serve_client.Client(Target(url="http://there/v1", model="m"), None, iter(range(99)).__next__)
    got = asyncio.run(client(Planned(0.0, 5, 6), 0.0))
    assert (got.error, len(got.pieces), got.prompt_tokens, got.tokens) == (error, 1, 5, 1)


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
def test_reasoning_counts_as_text(monkeypatch: pytest.MonkeyPatch, field: str):
    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield f'data: {{"choices": [{{"delta": {{"{field}": "hm"}}}}]}}\n\ndata: [DONE]\n\n'.encode()

    monkeypatch.setattr(serve_client, "exchange", answer)
    client = serve_client.Client(Target(url="http://there/v1", model="m"), None, iter(range(99)).__next__)
    assert len(asyncio.run(client(Planned(0.0, 5, 6), 0.0)).pieces) == 1


@pytest.mark.parametrize(("sent", "kept"), [('"new"', "new"), ("7", None), ("{}", None), ("null", None), ('""', None)])
def test_a_fingerprint_that_is_no_text_is_ignored(monkeypatch: pytest.MonkeyPatch, sent: str, kept: str | None):
    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield f'data: {{"system_fingerprint": {sent}}}\n\ndata: [DONE]\n\n'.encode()

    monkeypatch.setattr(serve_client, "exchange", answer)
    client = serve_client.Client(Target(url="http://there/v1", model="m"), None, iter(range(99)).__next__)
    asyncio.run(client(Planned(0.0, 5, 6), 0.0))
    assert client.fingerprint == kept


def test_a_server_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve_client, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConfigError, match="TimeoutError"):
        completed(Target(url=f"http://127.0.0.1:{silent.getsockname()[1]}/v1"), None)


def test_a_broken_list_of_models_is_refused(monkeypatch: pytest.MonkeyPatch):
    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield b"[" * 100_000

    monkeypatch.setattr(serve_client, "exchange", answer)
    with pytest.raises(ConfigError, match="RecursionError"):
        completed(Target(url="http://there/v1"), None)


def test_times_of_a_request_are_those_of_its_pieces():
    one = timeline(1.0, 1.5, 1.6, 1.9, 2.5)
    assert one.ttft == pytest.approx(0.5) and one.e2e == pytest.approx(1.5)
    assert one.tpot == pytest.approx(1.0 / 3) and one.gaps == pytest.approx([0.1, 0.3, 0.6])
    assert timeline(1.0, 1.5).tpot is None
    assert timeline(1.0, 1.5, tokens=9).tpot is None, "all arrived at once"
    assert timeline(0.0, 1.0, 2.0, tokens=5).tpot == pytest.approx(0.25), "a piece may be several tokens"


def test_percentiles_are_interpolated():
    hundred = Spread.of([number / 100 for number in range(101)])
    assert hundred is not None
    assert (hundred.mean, hundred.p50, hundred.p90) == pytest.approx((0.5, 0.5, 0.9))
    assert (hundred.p99, hundred.max) == pytest.approx((0.99, 1.0))
    assert Spread.of([3.0, None, 1.0]) == Spread(mean=2.0, p50=2.0, p90=2.8, p99=2.98, max=3.0)
    assert Spread.of([None]) is None and Spread.of([]) is None


TIMELINES = [
    timeline(0.0, 1.0, 1.1, 1.2),  # 1 s to the first, 0.1 s per token
    timeline(1.0, 1.2, 2.2, 3.2),  # 0.2 s, 1 s per token
    timeline(2.0, 2.5, 2.6),  # 0.5 s, 0.1 s per token
    timeline(3.0, error="HTTP 429", end=3.1),
    timeline(4.0, 4.5, 10.0, error="cut off"),
]


def test_a_summary_of_known_timelines():
    summary = Summary.of(TIMELINES, Level(ttft=0.5, tpot=0.1001))
    assert summary.requests == 5 and summary.failures == {"HTTP 429": 1, "cut off": 1}
    assert summary.seconds == 10.0
    assert summary.requests_per_second == pytest.approx(0.3)
    assert summary.tokens_per_second == pytest.approx(0.8)
    assert summary.prompt_tokens_per_second == pytest.approx(3.0)
    assert summary.goodput == pytest.approx(0.1) and summary.good == pytest.approx(0.2)
    assert summary.ttft is not None and summary.ttft.max == 1.0
    assert summary.itl is not None and summary.itl.mean == pytest.approx((0.1 + 0.1 + 1 + 1 + 0.1) / 5)
    assert summary.e2e is not None and summary.e2e.mean == pytest.approx((1.2 + 2.2 + 0.6) / 3)


@pytest.mark.parametrize(
    ("level", "good"), [({}, 3), ({"ttft": 0.6}, 2), ({"tpot": 0.2}, 2), ({"e2e": 1.3}, 2), ({"e2e": 0.1}, 0)]
)
def test_goodput_counts_requests_within_the_level(level: dict[str, float], good: int):
    assert Summary.of(TIMELINES, Level(**level)).goodput == pytest.approx(good / 10)


def test_lateness_is_the_clients_delay_in_sending():
    late = [timeline(1.0, 2.0, sent=1.25), timeline(1.0, 2.0)]
    assert Summary.of(late, Level()).lateness == 0.25
    assert Summary.of([timeline(0.0, error="no text", end=1.0)], Level()).ttft is None


def test_a_report_survives_its_file(tmp_path: Path):
    report = ServeReport(
        version=ServeReport.LAYOUT,
        target=Target(url="http://there/v1", model="m"),
        load=Load(),
        level=Level(ttft=0.5),
        ferrum="0",
        started="now",
        processor="p",
        system_fingerprint=None,
        summary=Summary.of(TIMELINES, Level(ttft=0.5)),
        timelines=tuple(TIMELINES),
    )
    report.write(tmp_path / "a.json")
    assert ServeReport.read(tmp_path / "a.json") == report
    (tmp_path / "b.json").write_text(report.to_json().replace('"version": 2', '"version": 1', 1))
    with pytest.raises(RequestError):
        ServeReport.read(tmp_path / "b.json")
