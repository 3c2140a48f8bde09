"""The benchmark of servers: arrivals, timelines made by hand and the figures that they must come to."""

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
from ferrum.bench.serve_load import run_load
from ferrum.bench.serve_options import Level, Load, Target
from ferrum.bench.serve_overhead import Arm, take_turns
from ferrum.bench.serve_plan import Planned, plan
from ferrum.bench.serve_plot import HEIGHT, MARGIN, chart, charts
from ferrum.bench.serve_report import VERSION, ServeOrigin, ServeReport, Spread, Summary
from ferrum.bench.serve_run import served_model
from ferrum.core.errors import ConfigError, RequestError


def moments(**load: Any) -> list[float]:
    return [each.at for each in plan(Load(**load))]


def timeline(planned: float, *pieces: float, error: str | None = None, **changes: Any) -> Timeline:
    """A request that was sent at once, whose pieces are a token each."""
    values = {"sent": planned, "end": pieces[-1] if pieces else planned, "prompt_tokens": 10, "tokens": len(pieces)}
    return Timeline(planned=planned, pieces=pieces, error=error, **{**values, **changes})


# Arrivals


def test_constant_arrivals_come_evenly_and_the_warm_up_is_beside_those_asked_for():
    assert moments(arrivals="constant", rate=4.0, requests=3, warmup=2) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_bursts_come_together_at_the_same_rate():
    assert moments(arrivals="burst", rate=4.0, burst=2, requests=6, warmup=0) == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]


def test_poisson_arrivals_are_independent_of_each_other():
    """Gaps are exponential: their standard deviation is their mean, and 1/e of them are longer than it."""
    at = moments(rate=5.0, requests=20_000, warmup=0)
    gaps = [after - before for before, after in itertools.pairwise([0.0, *at])]
    assert mean(gaps) == pytest.approx(0.2, rel=0.03) and stdev(gaps) == pytest.approx(0.2, rel=0.03)
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, abs=0.01)
    few = [moments(rate=5.0, requests=20, warmup=0, seed=seed) for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2]


def test_lengths_vary_as_far_as_they_may():
    made = plan(Load(requests=2000, prompt_tokens=100, output_tokens=10, spread=0.5))
    prompts, outputs = {each.prompt_tokens for each in made}, {each.max_tokens for each in made}
    assert (min(prompts), max(prompts)) == (50, 150) and outputs == set(range(5, 16))
    assert {each.prompt_tokens for each in plan(Load(requests=20, prompt_tokens=100))} == {100}


def test_a_trace_is_followed_as_it_is(tmp_path: Path):
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
def test_loads_that_cannot_be_are_refused(name: str, value: Any):
    with pytest.raises(ConfigError) as refused:
        Load(**{name: value})
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("arrivals", "option"),
    [("closed", "rate"), ("trace", "rate"), ("poisson", "burst"), ("constant", "clients"), ("trace", "prompt_tokens")],
)
def test_options_that_the_arrivals_do_not_use_are_refused(arrivals: str, option: str):
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
def test_targets_that_cannot_be_are_refused(name: str, value: Any):
    with pytest.raises(ConfigError) as refused:
        Target(**{"url": "http://there/v1", "model": "m", name: value})
    assert refused.value.param == name


# Sending


class Server:
    """Stands in for a server: answers nobody before so many requests have been with it at once."""

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


def test_an_open_loop_waits_for_nobody_and_counts_from_when_a_request_was_due():
    server = Server(12)
    made = [Planned(0.002 * place, 1, place + 1) for place in range(12)]
    told: list[int] = []
    timelines = asyncio.run(run_load(made, server.send, server.clock, done=lambda: told.append(1)))
    assert server.most == 12 and len(told) == 12
    assert [each.planned for each in timelines] == [each.at for each in made]
    assert [each.tokens for each in timelines] == list(range(1, 13))
    assert all(each.sent >= each.planned for each in timelines)


def test_a_closed_loop_has_as_many_requests_as_clients():
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
        ("[1]", "another stream than OpenAI's"),
        ('"text"', "another stream than OpenAI's"),
        ('{"choices": {"0": 1}}', "another stream than OpenAI's"),
        ('{"choices": [1]}', "another stream than OpenAI's"),
        ('{"choices": [{"delta": "x"}]}', "another stream than OpenAI's"),
        ('{"usage": 7}', "another stream than OpenAI's"),
        ("{", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_what_a_server_says_amiss_is_the_failure_of_one_request(
    monkeypatch: pytest.MonkeyPatch, event: str, error: str | None
):
    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield f'data: {{"choices": [{{"text": "a"}}]}}\n\ndata: {event}\n\ndata: [DONE]\n\n'.encode()

    monkeypatch.setattr(serve_client, "exchange", answer)
    client = serve_client.Client(Target(url="http://there/v1", model="m"), None, iter(range(99)).__next__)
    got = asyncio.run(client(Planned(0.0, 5, 6), 0.0))
    assert (got.error, len(got.pieces), got.prompt_tokens, got.tokens) == (error, 1, 5, 1)


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
def test_what_a_model_thinks_is_text_too(monkeypatch: pytest.MonkeyPatch, field: str):
    """Servers that tell it apart send it under a name of its own."""

    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield f'data: {{"choices": [{{"delta": {{"{field}": "hm"}}}}]}}\n\ndata: [DONE]\n\n'.encode()

    monkeypatch.setattr(serve_client, "exchange", answer)
    client = serve_client.Client(Target(url="http://there/v1", model="m"), None, iter(range(99)).__next__)
    assert len(asyncio.run(client(Planned(0.0, 5, 6), 0.0)).pieces) == 1


@pytest.mark.parametrize(("told", "kept"), [('"new"', "new"), ("7", None), ("{}", None), ("null", None), ('""', None)])
def test_a_fingerprint_is_a_text(monkeypatch: pytest.MonkeyPatch, told: str, kept: str | None):
    """A report with anything else could not be read again."""

    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield f'data: {{"system_fingerprint": {told}}}\n\ndata: [DONE]\n\n'.encode()

    monkeypatch.setattr(serve_client, "exchange", answer)
    client = serve_client.Client(Target(url="http://there/v1", model="m"), None, iter(range(99)).__next__)
    asyncio.run(client(Planned(0.0, 5, 6), 0.0))
    assert client.fingerprint == kept


def test_a_server_that_does_not_answer_is_no_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve_client, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConfigError, match="TimeoutError"):
        served_model(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", None)


def test_models_that_nobody_can_read_are_refused(monkeypatch: pytest.MonkeyPatch):
    async def answer(*_: object) -> AsyncIterator[bytes]:
        yield b"[" * 100_000

    monkeypatch.setattr(serve_client, "exchange", answer)
    with pytest.raises(ConfigError, match="RecursionError"):
        served_model("http://there/v1", None)


# Figures


def test_the_times_of_a_request_are_those_of_its_pieces():
    one = timeline(1.0, 1.5, 1.6, 1.9, 2.5)
    assert one.ttft == pytest.approx(0.5) and one.e2e == pytest.approx(1.5)
    assert one.tpot == pytest.approx(1.0 / 3) and one.gaps == pytest.approx([0.1, 0.3, 0.6])
    assert timeline(1.0, 1.5).tpot is None
    assert timeline(1.0, 1.5, tokens=9).tpot is None, "they came at once: nothing is known of the time between them"
    assert timeline(0.0, 1.0, 2.0, tokens=5).tpot == pytest.approx(0.25), "a piece may be several tokens"


def test_percentiles_are_right_by_construction():
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


def test_a_summary_is_right_by_construction():
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
def test_goodput_counts_the_well_served(level: dict[str, float], good: int):
    assert Summary.of(TIMELINES, Level(**level)).goodput == pytest.approx(good / 10)


def test_lateness_is_the_clients_own():
    late = [timeline(1.0, 2.0, sent=1.25), timeline(1.0, 2.0)]
    assert Summary.of(late, Level()).lateness == 0.25
    assert Summary.of([timeline(0.0, error="no text", end=1.0)], Level()).ttft is None


def test_a_report_goes_through_its_file(tmp_path: Path):
    report = ServeReport(
        version=VERSION,
        target=Target(url="http://there/v1", model="m"),
        load=Load(),
        level=Level(ttft=0.5),
        origin=ServeOrigin(ferrum="0", started="now", processor="p", system_fingerprint=None),
        server=("m", "--quantize", "int8"),
        summary=Summary.of(TIMELINES, Level(ttft=0.5)),
        timelines=tuple(TIMELINES),
    )
    report.write(tmp_path / "a.json")
    assert ServeReport.read(tmp_path / "a.json") == report
    (tmp_path / "b.json").write_text(report.to_json().replace('"version": 1', '"version": 2', 1))
    with pytest.raises(RequestError):
        ServeReport.read(tmp_path / "b.json")


# Charts


def test_a_chart_is_as_high_as_its_values():
    lines = chart("title", [0.0, 1.0, 2.0, 4.0], 3.0)
    columns = list(zip(*(line.ljust(MARGIN + 6)[MARGIN + 2 :] for line in lines[1 : HEIGHT + 1]), strict=True))
    filled = [sum(" ▁▂▃▄▅▆▇█".index(cell) for cell in column) for column in columns]
    assert filled == [0, 2 * HEIGHT, 4 * HEIGHT, 8 * HEIGHT]
    assert lines[1].startswith("       4 ┤") and lines[-1].endswith("3.0 s")


def test_charts_of_a_run_show_when_things_happened():
    lines = charts([timeline(0.0, 1.0, 9.0, end=10.0)], width=10)
    pieces = lines[1 : HEIGHT + 1]
    assert all(line[MARGIN + 2 :].split() == ["█", "█"] for line in pieces)
    assert [line.index("█") - MARGIN - 2 for line in pieces] == [1] * HEIGHT
    assert lines[HEIGHT + 4].endswith("██████████"), "one request was live all the time"


# What serving costs


def test_arms_take_turns_and_the_first_turn_does_not_count():
    asked: list[tuple[str, int]] = []

    def arm(name: str, figure: float) -> Any:
        def turn(load: Load) -> float:
            asked.append((name, load.seed))
            return figure + load.seed

        return turn

    turns = {"offline": arm("offline", 100), "thread": arm("thread", 90)}
    samples = take_turns(turns, Load(), 2, lambda _: None)
    assert samples == {"offline": [101, 102], "thread": [91, 92]}
    assert asked == [(n, seed) for seed, n in ((0, "offline"), (0, "thread"))] + [
        ("thread", 1), ("offline", 1), ("offline", 2), ("thread", 2),
    ]  # fmt: skip


def test_what_is_lost_is_told_turn_by_turn():
    """The machine is twice as fast in the second turn; the server loses a tenth in either."""
    arm = Arm.of("thread", [90, 180, 270], [100, 200, 300])
    assert arm.figure == 180 and arm.lost == pytest.approx(0.1) and arm.noise == pytest.approx(0, abs=1e-12)
    assert Arm.of("thread", [90], [100]).noise is None
