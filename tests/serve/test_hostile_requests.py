"""Hostile requests get a 4xx or a closed connection, and do not affect other clients."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from random import Random
from typing import Final

import pytest
from httpx import Response

from engine_fakes import FakeRecipe, LetterTokenizer
from ferrum.core.errors import EngineDead
from ferrum.server.common import http_guard, service
from ferrum.text.untrusted_template import UntrustedTemplate
from serve_kit import USER, Served, chat_parts, error_of, events, heard, serving, wait_for, wire

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = b'{"model": "fake", "prompt": "ab", "max_tokens": 2}'
NEIGHBOUR: Final = {"prompt": "neighbour", "seed": 3, "max_tokens": 40, "ignore_eos": True}
GOOD = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def target() -> Iterator[Served]:
    """A server with short limits; a neighbour streams during every test."""
    recipe = FakeRecipe(seconds_per_step=0.002)
    with serving(chat_parts(recipe), head_seconds=2, body_seconds=2, max_body_bytes=1 << 20) as server:
        yield server


@pytest.fixture(scope="module")
def alone(target: Served) -> str:
    """The neighbour's text when it is alone."""
    text: str = target.complete(**NEIGHBOUR).json()["choices"][0]["text"]
    return text


@pytest.fixture(autouse=True)
def _neighbour(target: Served, alone: str) -> Iterator[None]:
    """Assert that a neighbour's streams during a test are the same as alone."""
    over, wrong = threading.Event(), []

    def read() -> None:
        while not over.is_set():
            *chunks, done = events(target.complete(**NEIGHBOUR, stream=True))
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            if text != alone or done is not None:
                wrong.append(text)

    reading = threading.Thread(target=read)
    reading.start()
    yield
    over.set()
    reading.join()
    assert wrong == []
    target.wait_idle()


def answer_to(server: Served, data: bytes, *, close: bool = True) -> bytes:
    """Send these bytes and return everything received until the connection closes."""
    with wire(server) as connection:
        try:
            connection.sendall(data)
            if close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:  # reset before all was sent
            pass
        return heard(connection)


def statuses(said: bytes) -> list[int]:
    """Return the status of each response on a connection."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", said)]


def refused(said: bytes) -> bool:
    return all(400 <= status < 500 for status in statuses(said)) and (said == b"" or said.startswith(b"HTTP/1.1 4"))


WIRES = {
    "nothing": b"",
    "zeros": b"\x00" * 4096,
    "noise": Random(1).randbytes(65536),
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x11" * 500,
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/0.9": b"GET /\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "a header without a name": b"GET /health HTTP/1.1\r\nhost: x\r\n: y\r\n\r\n",
    "a zero in a header": b"GET /health HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
    "headers without end": b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(50_000)),
    "a header of a megabyte": b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * (1 << 20) + b"\r\n\r\n",
    "a path of a megabyte": b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a negative length": HEAD + b"content-length: -1\r\n\r\n{}",
    "a length of letters": HEAD + b"content-length: many\r\n\r\n{}",
    "an endless length": HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n{}",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 50\r\n\r\n" + BODY,
    "a length and chunks": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    "an unknown encoding": HEAD + b"transfer-encoding: gzip\r\n\r\n" + BODY,
    "a chunk without a size": HEAD + b"transfer-encoding: chunked\r\n\r\nnot a size\r\n{}\r\n0\r\n\r\n",
    "a chunk of a terabyte": HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffff\r\n{}\r\n0\r\n\r\n",
    "a body that is cut off": HEAD + b"content-length: 500\r\n\r\n" + BODY,
    "a compressed body": HEAD + b"content-encoding: gzip\r\ncontent-length: 20\r\n\r\n\x1f\x8b\x08" + b"\x00" * 17,
}


@pytest.mark.parametrize("name", WIRES)
def test_invalid_bytes_are_refused(target: Served, name: str) -> None:
    assert refused(answer_to(target, WIRES[name]))


PATHS = [b"/%00", b"/%ff%fe", b"/v1/models/%ff", b"/../../etc/passwd", b"//v1//models", b"/v1/models/" + b"%41" * 5000]
PATHS += [b"/v1/requests/%ed%a0%80", b"/?" + b"a=b&" * 5000, b"http://elsewhere.example/v1/nothing", b"*"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:24])
def test_hostile_paths_are_refused(target: Served, path: bytes) -> None:
    said = answer_to(target, b"DELETE " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert refused(said) and b"Traceback" not in said


BODIES: dict[str, bytes] = {
    "deep lists": b'{"model": "fake", "prompt": ' + b"[" * 400_000,
    "deep objects": b'{"model": "fake", "prompt": "a", "x": ' + b'{"a":' * 150_000,
    "balanced and deep": b'{"model": "fake", "prompt": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a number of many digits": b'{"model": "fake", "prompt": "a", "seed": ' + b"7" * 500_000 + b"}",
    "a number of a large exponent": b'{"model": "fake", "prompt": "a", "temperature": 1e400}',
    "a large id": b'{"model": "fake", "prompt": [1, 99999999999999999999]}',
    "a negative id": b'{"model": "fake", "prompt": [-1]}',
    "not a number": b'{"model": "fake", "prompt": "a", "top_p": NaN}',
    "infinity": b'{"model": "fake", "prompt": "a", "top_p": -Infinity}',
    "a lone surrogate": b'{"model": "fake", "prompt": "\\ud83d"}',
    "surrogates the wrong way round": b'{"model": "fake", "prompt": "\\ude00\\ud83d"}',
    "an encoded surrogate": b'{"model": "fake", "prompt": "\xed\xa0\x80"}',
    "invalid utf-8": b'{"model": "fake", "prompt": "\xc3\x28\xff"}',
    "utf-16": '{"model": "fake", "prompt": "a"}'.encode("utf-16"),
    "a control character": b'{"model": "fake", "prompt": "\x01"}',
    "a surrogate in a stop": b'{"model": "fake", "prompt": "a", "stop": ["\\udfff"]}',
    "a surrogate in a name": b'{"model": "fake", "prompt": "a", "\\ud800": 1}',
    "many stops": b'{"model": "fake", "prompt": "a", "stop": [' + b",".join(b'"%d"' % i for i in range(99_999)) + b"]}",
    "many biases": b'{"model": "fake", "prompt": "a", "logit_bias": {' + b'"7": 1,' * 99_999 + b'"97": 1}}',
    "many prompts": b'{"model": "fake", "prompt": [' + b'"a",' * 100_000 + b'"a"]}',
    "many choices": b'{"model": "fake", "prompt": "a", "n": 1000000000}',
    "a long prompt": b'{"model": "fake", "prompt": "' + b"a" * 1_000_000 + b'"}',
    "more than the limit": b'{"model": "fake", "prompt": "' + b"a" * 2_000_000 + b'"}',
    "after its end": BODY + BODY,
    "a byte order mark": b"\xef\xbb\xbf{}",
    "no object": b'"model"',
}  # fmt: skip


FINE_WITHOUT_GENERATION = (
    "a long prompt",
    "many stops",
    "balanced and deep",
    "a number of a large exponent",
    "many biases",
    "many choices",
)
"""Their fault is in a field of generation, which the other routes do not have."""


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize"])
def test_hostile_bodies_are_refused(target: Served, path: str) -> None:
    for name, body in BODIES.items():
        content = body.replace(b'"prompt"', b'"input"') if path == "/v1/embeddings" else body
        response = target.http.post(path, content=content, headers={"content-type": "application/json"})
        fine = path in ("/tokenize", "/v1/embeddings") and name in FINE_WITHOUT_GENERATION
        assert 400 <= response.status_code < 500 or (fine and response.status_code == 200), (name, response.text[:200])
        if response.status_code != 200:
            error_of(response, response.status_code)


TEMPLATES = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**12 }}",
    "{{ 9**99999999 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(messages) }}{{ messages }}",
    "{{ 'a'.ljust(9999999999) }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ '%9999999999d' % 1 }}",
    "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
    "{% set x = 'a' * 9999999 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
    "{{ ('1' * 999999) | replace('1', 'x' * 999999) }}",
    "{% include '/etc/passwd' %}",
    "{{ raise_exception('no') }}",
    "{% if",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_hostile_templates_are_refused(target: Served, template: str) -> None:
    error_of(target.chat(chat_template=template), 400)


def test_template_that_renders_megabytes_is_refused(target: Served) -> None:
    """Encoding the text would take long, only for it to be refused."""
    body = {"messages": USER, "chat_template": "{{ 'x' * 4000000 }}"}
    assert error_of(target.chat(**body), 400)["param"] == "chat_template"
    for path in ("/tokenize", "/v1/chat/completions/render"):
        assert error_of(target.post(path, **body), 400)["param"] == "chat_template"
        assert target.post(path, **body | {"chat_template": "{{ 'x' * 100000 }}"}).json()["count"] == 100_000


def hold_up(target: Served, over: threading.Event, slow: Callable[[], Response]) -> None:
    """Send more slow requests than may wait, and other requests meanwhile."""
    most, more = service.NUM_THREADS + service.MAX_WAITING, 4
    with ThreadPoolExecutor(most + more) as pool:
        asked = [pool.submit(slow) for _ in range(most + more)]
        try:
            wait_for(lambda: sum(each.done() for each in asked) == more)
            error = slow()
            assert error_of(error, 429)["code"] == "queue_full" and int(error.headers["retry-after"]) >= 1
            assert target.complete(max_tokens=1, user="x" * 5000).status_code == 200
            assert target.post("/tokenize", content="hi").status_code == 200
        finally:
            over.set()
        assert sorted(each.result().status_code for each in asked) == [200] * most + [429] * more
    assert slow().status_code == 200


def test_slow_templates_do_not_delay_other_requests(target: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def fill(*_: object) -> str:
        assert over.wait(60)
        return "slow"

    monkeypatch.setattr(UntrustedTemplate, "fill", fill)
    hold_up(target, over, partial(target.chat, chat_template="x", max_tokens=1))


def test_slow_texts_do_not_delay_other_requests(target: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    over, encode = threading.Event(), LetterTokenizer.encode

    def slow(tokenizer: LetterTokenizer, text: str, **options: bool) -> list[int]:
        assert len(text) < 10_000 or over.wait(60)
        return encode(tokenizer, text[:9], **options)

    monkeypatch.setattr(LetterTokenizer, "encode", slow)
    monkeypatch.setattr(service, "LARGE_BYTES", 10_000)
    hold_up(target, over, partial(target.post, "/tokenize", content="a" * 10_000))


def test_waiting_preparation_fails_when_the_server_ends() -> None:
    async def outcomes() -> list[object]:
        pools, over = service.WorkerPools(), threading.Event()
        asked = [
            asyncio.create_task(pools.run(0, partial(over.wait, 60), template=True))
            for _ in range(service.NUM_THREADS + 1)
        ]
        await asyncio.sleep(0)
        pools.close()
        over.set()
        return await asyncio.gather(*asked, pools.run(0, over.wait, template=True), return_exceptions=True)

    *ran, waited, late = asyncio.run(outcomes())
    assert ran == [True] * service.NUM_THREADS and isinstance(waited, EngineDead) and isinstance(late, EngineDead)


@pytest.mark.parametrize(
    "garbage", [b"GET /health HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", HEAD + b"content-length: -5\r\n\r\n"]
)
def test_invalid_http_gets_a_json_error(target: Served, garbage: bytes) -> None:
    head, body = answer_to(target, garbage).split(b"\r\n\r\n")
    assert statuses(head) == [400] and b"content-type: application/json" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_good_requests_before_garbage_are_answered(target: Served) -> None:
    said = answer_to(target, GOOD + GOOD + b"\x00garbage\r\n\r\n", close=False)
    assert statuses(said)[:2] == [200, 200] and set(statuses(said)[2:]) <= {400}


def test_a_thousand_pipelined_requests_are_answered_in_order(target: Served) -> None:
    probe = b"GET /v1/models/%d HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /v1/models/1000 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    said = answer_to(target, b"".join(probe % number for number in range(1000)) + last, close=False)
    assert statuses(said) == [404] * 1001
    places = [said.index(b"'%d'" % number) for number in range(1001)]
    assert places == sorted(places)


def test_slow_connections_are_closed(target: Served) -> None:
    """Two hundred at once: half-open connections, slow headers and slow bodies."""
    with ExitStack() as stack:
        slow = []
        for number in range(200):
            slow.append(stack.enter_context(wire(target)))
            slow[-1].sendall((b"", b"POST /v1/comp", HEAD, HEAD + b"content-length: 90\r\n\r\n{")[number % 4])
        assert target.complete(max_tokens=1).status_code == 200
        assert all(refused(heard(connection)) for connection in slow)


def test_connection_is_cut_if_a_refused_body_never_ends(target: Served) -> None:
    """Each further byte must not prolong the connection."""
    with wire(target) as connection, pytest.raises(ConnectionError):
        connection.sendall(b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
        assert statuses(connection.recv(1 << 16)) == [404]
        for _ in range(30):
            connection.sendall(b"x")
            time.sleep(0.2)


@pytest.mark.parametrize("chunked", [False, True])
def test_client_that_sends_a_large_body_first_receives_the_413(target: Served, chunked: bool) -> None:
    body = [b"a" * (1 << 20)] * 12
    connection = HTTPConnection(target.url.removeprefix("http://"), timeout=60)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", iter(body) if chunked else b"".join(body), headers)
    assert connection.getresponse().status == 413
    connection.close()


def test_client_that_never_ends_a_large_body_is_cut_off(target: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_guard, "LINGER_BYTES", 4 << 20)
    piece = b"100000\r\n" + b"a" * (1 << 20) + b"\r\n"
    with wire(target) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(200):
                connection.sendall(piece)


def test_large_bodies_share_a_memory_limit() -> None:
    """Memory is released when a request ends, refused or not."""
    part = b'{"model": "fake", "prompt": "' + b"a" * 60_000
    with serving(chat_parts(FakeRecipe()), max_held_bytes=200_000, body_seconds=20) as server, ExitStack() as stack:
        holding = [stack.enter_context(wire(server)) for _ in range(3)]
        for connection in holding:
            connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % (len(part) + 2) + part)
        body = part + b'"}'
        headers = {"content-type": "application/json"}
        wait_for(lambda: server.http.post("/v1/completions", content=body, headers=headers).status_code == 429)
        refused_now = server.http.post("/v1/completions", content=body, headers=headers)
        assert error_of(refused_now, 429)["code"] == "queue_full" and "retry-after" in refused_now.headers
        assert server.complete(max_tokens=1).status_code == 200
        for connection in holding:
            connection.sendall(b'"}')
            assert statuses(connection.recv(1 << 16)) == [400]  # exceeds the context
        error_of(server.http.post("/v1/completions", content=body, headers=headers), 400)


def mutated(pick: Random) -> bytes:
    """Return a good request with some bytes removed, doubled, replaced or copied from another part."""
    data = bytearray(GOOD)
    for _ in range(pick.randint(1, 6)):
        start = pick.randrange(len(data))
        end = min(len(data), start + pick.choice((1, 1, 2, 8, 40)))
        other = pick.randrange(len(GOOD))
        data[start:end] = pick.choice(
            (b"", bytes(data[start:end]) * 2, pick.randbytes(end - start), GOOD[other : other + end - start])
        )
    return bytes(data)


def check_mutations(target: Served, count: int) -> None:
    pick = Random(count)
    for _ in range(count):
        data = mutated(pick)
        said = answer_to(target, data)
        assert all(status == 200 or 400 <= status < 500 for status in statuses(said)), (data, said)
        assert b"Traceback" not in said


def test_mutated_requests_are_answered(target: Served) -> None:
    check_mutations(target, 200)


@pytest.mark.soak
def test_many_mutated_requests_are_answered(target: Served) -> None:
    check_mutations(target, 20_000)


def test_client_that_never_reads_is_dropped_when_it_leaves(target: Served) -> None:
    """Its answer exceeds all buffers; the fixture then waits until no request is left."""
    body = BODY.replace(b"2}", b'4000, "ignore_eos": true, "logprobs": 5, "stream": true, "n": 4}')
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(wire(target))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: target.service.num_live >= 8)
