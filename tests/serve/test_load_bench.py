"""`ferrum bench serve` against real servers over the fake engine: what it counts is what the server did."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from engine_fakes import VOCABULARY, FakeRecipe
from ferrum.bench import shapes
from ferrum.bench.report import Report
from ferrum.bench.serve_client import message_of
from ferrum.bench.serve_options import Level, Load, Target
from ferrum.bench.serve_overhead import OverheadReport
from ferrum.bench.serve_report import ServeOrigin, ServeReport
from ferrum.bench.serve_run import measure_server, served_model, usual_vocabulary
from ferrum.cli.main import execute
from ferrum.core.errors import ConfigError
from serve_kit import SLOW, Served, chat_parts, serving, wait_for


def origin(fingerprint: str | None) -> ServeOrigin:
    return ServeOrigin(ferrum="0", started="now", processor="p", system_fingerprint=fingerprint)


def measure(server: Served, load: Load, key: str | None = None, **target: Any) -> ServeReport:
    options = {"url": f"{server.url}/v1", "model": "fake", "vocabulary": 90, **target}
    return measure_server(Target(**options), load, level=Level(), key=key, origin=origin, server=(), bar=False)


def test_the_server_got_what_was_planned_and_every_token_was_counted(server: Served) -> None:
    load = Load(arrivals="constant", rate=100, requests=10, warmup=2, prompt_tokens=20, output_tokens=7, spread=0.5)
    report = measure(server, load)
    assert report.summary.failures == {} and report.summary.requests == 10
    assert report.origin.system_fingerprint == "fake-1"
    got = sorted((len(each.prompt), each.params.max_tokens) for each in server.requests)
    assert got == sorted((each.prompt_tokens, each.tokens) for each in report.timelines)
    assert len({each.prompt for each in server.requests}) == 12, "no two prompts are the same"
    assert all(3 <= token < 90 for each in server.requests for token in each.prompt)


def test_a_chat_is_measured_too(server: Served) -> None:
    report = measure(server, Load(rate=100, requests=3, warmup=0, output_tokens=5), endpoint="chat")
    assert report.summary.failures == {} and {each.tokens for each in report.timelines} == {5}


def test_times_are_those_of_the_servers_steps() -> None:
    """Steps take 10 ms at least, so nothing can be faster; all clients of a closed loop are in each step."""
    with serving(chat_parts(SLOW)) as server:
        load = Load(arrivals="closed", clients=4, requests=8, warmup=0, prompt_tokens=4, output_tokens=10)
        summary = measure(server, load).summary
    assert summary.ttft is not None and summary.tpot is not None and summary.e2e is not None
    assert summary.tpot.p50 >= 0.01 and summary.e2e.p50 >= 0.1
    assert summary.tokens_per_second <= 4 / 0.01


def test_failures_are_told_by_their_kind(tmp_path: Path) -> None:
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


def test_a_stream_that_fails_in_its_middle_is_a_failure() -> None:
    with serving(chat_parts(FakeRecipe(seconds_per_step=0.05)), request_seconds=2) as server:
        load = Load(rate=100, requests=1, warmup=0, prompt_tokens=4, output_tokens=1000)
        assert measure(server, load).summary.failures == {"error in the stream": 1}


def test_keys_are_sent(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    with serving(api_key_file=str(tmp_path / "keys")) as server:
        load = Load(rate=100, requests=1, warmup=0, prompt_tokens=4)
        assert measure(server, load, key="secret").summary.failures == {}
        assert measure(server, load).summary.failures == {"HTTP 401": 1}
        assert served_model(f"{server.url}/v1", "secret") == "fake"
        with pytest.raises(ConfigError):
            served_model(f"{server.url}/v1", None)


def test_the_command_measures_a_server_that_is_there(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.json"
    options = "--rate 50 --requests 4 --warmup 1 --prompt-tokens 8 --vocabulary 90 --ttft 30"
    arguments = ["bench", "serve", "--url", f"{server.url}/v1", *options.split(), "--output", str(out)]
    assert execute(arguments) == 0
    report = ServeReport.read(out)
    assert report.summary.good == 1.0 and report.server == (f"{server.url}/v1",) and len(report.timelines) == 5
    shown = capsys.readouterr().out
    assert "4 requests after 1 of warm-up" in shown and "to the first token" in shown and "live requests" in shown


def test_a_load_of_which_nothing_was_served_is_no_success(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--url", f"{server.url}/v1", "--served-model", "other", "--requests", "2", "--warmup", "0"]
    assert execute(["bench", "serve", *arguments, "--rate", "100", "--output", str(tmp_path / "a.json")]) == 2
    told = "ferrum: no request was served: 2 x HTTP 404 (the model 'other' is not served here)"
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)
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
def test_what_a_server_says_of_a_failure_is_told_in_a_line(body: bytes, message: str | None) -> None:
    assert message_of(body) == message


def test_a_report_outlasts_the_reader_of_the_table(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(rows: object) -> None:
        raise OSError(ENOSPC, "the disk of the log is full")

    commands = {
        "bench": ["--shape", "tiny", "--series", "1", "--workload", "decode@128"],
        "bench_serve": ["serve", "--url", f"{server.url}/v1", "--requests", "1", "--warmup", "0", "--vocabulary", "90"],
    }
    for command, arguments in commands.items():
        monkeypatch.setattr(f"ferrum.cli.{command}.print_table", full)
        assert execute(["bench", *arguments, "--output", str(tmp_path / command)]) == 2
        assert "the disk of the log is full" in capsys.readouterr().err
    assert ServeReport.read(tmp_path / "bench_serve").summary.requests == 1
    assert [cell.workload for cell in Report.read(tmp_path / "bench").cells] == ["decode@128"]


def test_the_command_serves_a_shape_itself(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    options = "--arrivals closed --clients 2 --requests 4 --warmup 0 --output-tokens 8 --quantize int8 --threads 1"
    assert execute(["bench", "serve", "--shape", "tiny", *options.split(), "--output", str(out)]) == 0
    report = ServeReport.read(out)
    assert report.server == ("tiny", "--quantize", "int8", "--threads", "1")
    assert report.summary.failures == {} and {len(each.pieces) for each in report.timelines} <= set(range(1, 9))
    assert {each.tokens for each in report.timelines} == {8}


def test_prompts_are_of_tokens_that_the_model_has(tmp_path: Path) -> None:
    with serving(chat_parts(FakeRecipe(fails=False))) as server:  # some of its tokens would be commands to die
        command = ["bench", "serve", "--url", f"{server.url}/v1", "--requests", "2", "--rate", "99", "--output"]
        for given, vocabulary in (([], VOCABULARY), (["--vocabulary", "80"], 80)):
            assert execute([*command, str(tmp_path / "a.json"), *given]) == 0
            report = ServeReport.read(tmp_path / "a.json")
            assert report.target.vocabulary == vocabulary and report.summary.failures == {}
        assert usual_vocabulary(f"{server.url}/nowhere", None) == 256, "of another server nothing is known"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "url: give"),
        (["ferrum-tiny", "--shape", "tiny"], "url: give"),
        (["--url", "http://127.0.0.1:9/v1", "--quantize", "int8"], "url: "),
        (["--url", "http://127.0.0.1:9/v1"], "url: http://127.0.0.1:9/v1/models: "),
        (["--url", "somewhere"], "url: must look like"),
        (["--url", "somewhere", "--served-model", "m"], "url: must look like"),
        (["ferrum-tiny", "--timeout", "-1"], "timeout: "),
        (["--shape", "no-such"], "shape: "),
        (["./no-such-directory"], "the server did not start: "),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["bench", "serve", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"ferrum: {told}")
    assert len(lines) == 1 or "no-such-directory" in lines[-1], "no server is started for what none could do"


@pytest.mark.parametrize("content", [b"", b"one\ntwo\n", "kl\xe9".encode(), b"\xff\xfe"])
def test_a_file_without_a_key_that_a_header_can_carry_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "key").write_bytes(content)
    arguments = ["--url", "http://127.0.0.1:9/v1", "--served-model", "m", "--api-key-file", str(tmp_path / "key")]
    assert execute(["bench", "serve", *arguments]) == 2
    assert capsys.readouterr().err.startswith("ferrum: api_key_file: ")


def test_the_command_tells_what_serving_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model with fewer tokens than prompts are usually made of."""
    monkeypatch.setattr(shapes, "SHAPES", {"tiny": {**shapes.SHAPES["tiny"], "vocab_size": 101}})
    out = tmp_path / "a.json"
    options = "--clients 2 --prompt-tokens 8 --output-tokens 4 --series 1 --threads 1 --output"
    assert execute(["bench", "overhead", "--shape", "tiny", *options.split(), str(out)]) == 0
    report = OverheadReport.read(out)
    assert [arm.name for arm in report.arms] == ["offline", "thread", "process"]
    assert all(len(arm.samples) == 1 and arm.figure > 0 for arm in report.arms)
    assert report.server == ("tiny", "--threads", "1") and report.load.clients == 2
    assert capsys.readouterr().out.splitlines()[0].split() == ["ENGINE", "TOK/S", "LOST", "NOISE"]
    assert execute(["bench", "overhead"]) == 2
