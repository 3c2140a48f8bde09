"""`ferrum bench serve` against real servers over the fake engine: its figures agree with what the server did."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from engine_fakes import VOCABULARY, FakeRecipe
from ferrum.bench.report import Report
from ferrum.bench.serve_client import message_of
from ferrum.bench.serve_options import Level, Load, Target
from ferrum.bench.serve_report import ServeReport
from ferrum.bench.serve_run import completed, measure_server
from ferrum.cli.main import execute
from ferrum.core.errors import ConfigError
from overhead import measure_overhead
from own_server import subject_of
from serve_kit import SLOW, Served, chat_parts, serving, wait_for


def measure(server: Served, load: Load, key: str | None = None, **target: Any) -> ServeReport:
    options = {"url": f"{server.url}/v1", "model": "fake", "vocabulary": 90, **target}
    return measure_server(Target(**options), load, level=Level(), key=key, processor="p", bar=False)


def test_the_server_gets_the_planned_requests_and_every_token_counts(server: Served) -> None:
    load = Load(arrivals="constant", rate=100, requests=10, warmup=2, prompt_tokens=20, output_tokens=7, spread=0.5)
    report = measure(server, load)
    assert report.summary.failures == {} and report.summary.requests == 10
    assert report.system_fingerprint == "fake-1"
    got = sorted((len(each.prompt), each.params.max_tokens) for each in server.requests)
    assert got == sorted((each.prompt_tokens, each.tokens) for each in report.timelines)
    assert len({each.prompt for each in server.requests}) == 12, "no two prompts are the same"
    assert all(3 <= token < 90 for each in server.requests for token in each.prompt)


def test_a_chat_is_measured_too(server: Served) -> None:
    report = measure(server, Load(rate=100, requests=3, warmup=0, output_tokens=5), endpoint="chat")
    assert report.summary.failures == {} and {each.tokens for each in report.timelines} == {5}


def test_times_agree_with_the_servers_steps() -> None:
    """Steps take at least 10 ms, and all clients of a closed loop are in each step."""
    with serving(chat_parts(SLOW)) as server:
        load = Load(arrivals="closed", clients=4, requests=8, warmup=0, prompt_tokens=4, output_tokens=10)
        summary = measure(server, load).summary
    assert summary.ttft is not None and summary.tpot is not None and summary.e2e is not None
    assert summary.tpot.p50 >= 0.01 and summary.e2e.p50 >= 0.1
    assert summary.tokens_per_second <= 4 / 0.01


def test_failures_are_counted_by_kind(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with serving(chat_parts(FakeRecipe(seconds_per_step=0.01, hold=str(hold)), max_requests=2)) as server:
        load = Load(arrivals="burst", burst=6, requests=6, warmup=0, prompt_tokens=4)
        with ThreadPoolExecutor() as pool:
            burst = pool.submit(measure, server, load)
            wait_for(lambda: 'method="POST",status="4xx"} 4.0' in server.http.get("/metrics").text)
            hold.unlink()
            assert burst.result().summary.failures == {"HTTP 429": 4}
        assert measure(server, Load(rate=100, requests=1, warmup=0), model="other").summary.failures == {"HTTP 404": 1}
        slow = measure(server, Load(rate=100, requests=1, warmup=0), timeout=0.05)
        assert slow.summary.failures == {"timeout": 1} and slow.summary.tokens_per_second == 0
    assert measure(server, Load(rate=100, requests=1, warmup=0)).summary.failures == {"ConnectionRefusedError": 1}


def test_an_error_in_a_stream_is_a_failure() -> None:
    with serving(chat_parts(FakeRecipe(seconds_per_step=0.05)), request_seconds=2) as server:
        load = Load(rate=100, requests=1, warmup=0, prompt_tokens=4, output_tokens=1000)
        assert measure(server, load).summary.failures == {"error in the stream": 1}


def test_the_key_is_sent(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    with serving(api_key_file=str(tmp_path / "keys")) as server:
        load = Load(rate=100, requests=1, warmup=0, prompt_tokens=4)
        assert measure(server, load, key="secret").summary.failures == {}
        assert measure(server, load).summary.failures == {"HTTP 401": 1}
        target = Target(url=f"{server.url}/v1")
        assert completed(target, "secret").model == "fake"
        with pytest.raises(ConfigError):
            completed(target, None)


def test_the_command_measures_a_server(server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.json"
    options = "--rate 50 --requests 4 --warmup 1 --prompt-tokens 8 --vocabulary 90 --ttft 30"
    arguments = ["bench", "serve", "--url", f"{server.url}/v1", *options.split(), "--output", str(out)]
    assert execute(arguments) == 0
    report = ServeReport.read(out)
    assert report.summary.good == 1.0 and report.target.url == f"{server.url}/v1" and len(report.timelines) == 5
    printed = capsys.readouterr().out
    assert "4 requests after 1 of warm-up" in printed and "time to first token" in printed


def test_a_load_without_a_served_request_fails(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--url", f"{server.url}/v1", "--served-model", "other", "--requests", "2", "--warmup", "0"]
    assert execute(["bench", "serve", *arguments, "--rate", "100", "--output", str(tmp_path / "a.json")]) == 2
    assert "2 x HTTP 404 (" in capsys.readouterr().err.splitlines()[-1]
    assert ServeReport.read(tmp_path / "a.json").summary.failures == {"HTTP 404": 2}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no\\n such  thing", "type": "x"}}', "no such thing"),
        (b'{"detail": "no such thing"}', '{"detail": "no such thing"}'),
        (b"<html>\n<body>down</body>", "<html> <body>down</body>"),
        (b"word " * 1000, "word " * 39 + "..."),
        (b"[" * 100_000, "..."),
        (b"\xff", "\ufffd"),
        (b" \n", None),
    ],
)
def test_a_servers_error_is_shortened_to_one_line(body: bytes, message: str | None) -> None:
    assert message_of(body) == message


def test_a_report_is_written_even_if_the_table_cannot_be_printed(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(rows: object) -> None:
        raise OSError(ENOSPC, "the disk of the log is full")

    commands = {
        "bench": ["--shape", "tiny", "--series", "1", "--workload", "decode@128"],
        "bench_serve": ["serve", "--url", f"{server.url}/v1", "--requests", "1", "--warmup", "0", "--vocabulary", "90"],
    }
    for command, arguments in commands.items():
        monkeypatch.setattr("ferrum.cli.bench.print_table", full)
        assert execute(["bench", *arguments, "--output", str(tmp_path / command)]) == 2
        assert "the disk of the log is full" in capsys.readouterr().err
    assert ServeReport.read(tmp_path / "bench_serve").summary.requests == 1
    assert [cell.workload for cell in Report.read(tmp_path / "bench").cells] == ["decode@128"]


def test_prompts_hold_tokens_of_the_model(tmp_path: Path) -> None:
    with serving(chat_parts(FakeRecipe(fails=False))) as server:  # some tokens would make it fail
        command = ["bench", "serve", "--url", f"{server.url}/v1", "--requests", "2", "--rate", "99", "--output"]
        for given, vocabulary in (([], VOCABULARY), (["--vocabulary", "80"], 80)):
            assert execute([*command, str(tmp_path / "a.json"), *given]) == 0
            report = ServeReport.read(tmp_path / "a.json")
            assert report.target.vocabulary == vocabulary and report.summary.failures == {}
        other = completed(Target(url=f"{server.url}/nowhere", model="m"), None)
        assert other.vocabulary == 256, "only ferrum reports its vocabulary"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--url", "http://127.0.0.1:9/v1"], "--url: http://127.0.0.1:9/v1/models does not answer"),
        (["--url", "somewhere"], "--url must look like"),
        (["--timeout", "-1"], "--timeout must be at least"),
        (["--rate", "0"], "--rate must be at least"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["bench", "serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ferrum: {problem}")


@pytest.mark.parametrize("content", [b"", b"one\ntwo\n", "kl\xe9".encode(), b"\xff\xfe"])
def test_a_file_without_a_valid_key_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "key").write_bytes(content)
    arguments = ["--url", "http://127.0.0.1:9/v1", "--served-model", "m", "--api-key-file", str(tmp_path / "key")]
    assert execute(["bench", "serve", *arguments]) == 2
    assert capsys.readouterr().err.startswith("ferrum: --api-key-file")


def test_overhead_is_measured_offline_and_with_both_hosts() -> None:
    with subject_of("", "tiny") as subject:
        load, arms, _ = measure_overhead(
            subject.model,
            {"threads": 1},
            ["--threads", "1"],
            clients=2,
            prompt_tokens=8,
            output_tokens=4,
            series=1,
            progress=str,
        )
    assert load.clients == 2 and [arm.name for arm in arms] == ["offline", "thread", "process"]
    assert all(len(arm.samples) == 1 and arm.figure > 0 for arm in arms)
