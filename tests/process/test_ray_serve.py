"""Replicas on Ray Serve: streams over all dialects while replicas are killed, drained and updated (`make test-ray`)."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from chat_samples import LLAMA
from lora_files import write_lora
from ray_cluster import READY_SECONDS, RayCluster, alive, kill, plain_server
from ray_streams import result_of, streams
from tiny import find
from tiny_with_tokenizer import spoken

pytestmark = [pytest.mark.ray, pytest.mark.timeout(3600)]

STREAMS = int(os.environ.get("STREAMS", "16"))
KILLS = int(os.environ.get("KILLS", "3"))
TOGETHER = 8
NOTICED_SECONDS = 120.0
"""Limit until Ray's processes have noticed the end of another one."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for tools in the prompt, and for streams that are long enough to be met by a kill."""
    folder = Path(shutil.copytree(spoken("qwen3"), tmp_path_factory.mktemp("model") / "tiny"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    return folder


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that differs in its down projections."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("other") / "model"))
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        save_file({name: np.flip(each, 0).copy() if "down" in name else each for name, each in tensors.items()}, path)
    return folder


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    adapter = write_lora(tmp_path_factory.mktemp("adapter"), find("qwen3"), 1)
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(LLAMA)
    names = ("--served-model-name", "tiny", "--lora", f"adapted={adapter}")
    return ["--dtype", "float32", "--drain-seconds", "20", "--chat-template", str(template), *names]


@pytest.fixture(scope="module")
def expected(model: Path, options: list[str]) -> list[Any]:
    """The results of a server with one engine, undisturbed."""
    with plain_server(model, *options) as url:
        return results(url)


@pytest.fixture(scope="module")
def cluster(model: Path, options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    found = RayCluster(tmp_path_factory.mktemp("ray"))
    try:
        found.deploy(model, "2", *options)
        yield found
    finally:
        found.close()


def results(url: str) -> list[Any]:
    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(lambda each: result_of(each, url), streams(STREAMS)))


def results_during(url: str, disturb: Callable[[], None]) -> Iterator[list[Any]]:
    """Yield the results of one run after the other until a disturbance is over, and one after it."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            disturb()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        yield results(url)
    yield results(url)
    assert not failures, failures


def test_streams_are_those_of_an_undisturbed_run_while_replicas_are_killed(
    cluster: RayCluster, expected: list[Any]
) -> None:
    pick = Random(1)

    def kill_some() -> None:
        for _ in range(KILLS):
            time.sleep(pick.uniform(0.2, 2.0))
            while not (found := cluster.workers("engines")):
                time.sleep(0.1)
            kill(pick.choice(found))

    cluster.wait_for_replicas(2)
    for found in results_during(cluster.url, kill_some):
        assert found == expected
    assert cluster.moved() > 0, "no kill met a stream"


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_drains_and_updates_to_the_same_weights_change_no_stream(
    cluster: RayCluster, expected: list[Any], model: Path, options: list[str], replicas: str
) -> None:
    for found in results_during(cluster.url, lambda: cluster.deploy(model, replicas, *options)):
        assert found == expected
    cluster.wait_for_replicas(int(replicas))


def test_scaling_to_three_replicas_and_back_changes_no_stream(
    cluster: RayCluster, expected: list[Any], model: Path, options: list[str]
) -> None:
    scale = ("--choices-per-replica", "0.5", "--up-seconds", "1", "--down-seconds", "5")

    def grow() -> None:
        cluster.deploy(model, "1:3", *options, *scale)
        cluster.wait_for_replicas(3)

    for found in results_during(cluster.url, grow):
        assert found == expected
    until = time.monotonic() + READY_SECONDS
    while len(cluster.engines()) > 1 and time.monotonic() < until:
        assert result_of(streams(1)[0], cluster.url) == expected[0]
        time.sleep(1.0)  # less than half a choice runs on average
    assert len(cluster.engines()) == 1
    assert results(cluster.url) == expected


def test_streams_go_on_when_the_controller_of_ray_serve_is_killed(cluster: RayCluster, expected: list[Any]) -> None:
    def kill_it() -> None:
        (controller,) = cluster.named(b"ray::ServeController")
        kill(controller)
        while cluster.named(b"ray::ServeController") in ([], [controller]):
            time.sleep(0.1)

    for found in results_during(cluster.url, kill_it):
        assert found == expected


def completion(url: str, prompt: str) -> tuple[str, bool]:
    """Return the text of a stream, and whether it came to its end; otherwise it breaks off, with an error."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 900, "seed": 1, "ignore_eos": True, "stream": True}
    text = ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as reply:
        if reply.status_code != 200:
            return text, False
        for line in reply.iter_lines():
            if line == "data: [DONE]":
                return text, True
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return text, False
                text += event["choices"][0]["text"]
    raise AssertionError("a stream stopped silently")


def test_an_update_to_other_weights_never_mixes_texts(
    cluster: RayCluster, model: Path, other: Path, options: list[str]
) -> None:
    texts = []
    for each in (model, other):
        with plain_server(each, *options) as url:
            texts.append([completion(url, f"prompt {number}")[0] for number in range(TOGETHER)])
    assert not set(texts[0]) & set(texts[1])
    update = threading.Thread(target=cluster.deploy, args=(other, "2", *options))
    update.start()
    with ThreadPoolExecutor(TOGETHER) as pool:
        while update.is_alive():
            found = list(pool.map(lambda number: completion(cluster.url, f"prompt {number}"), range(TOGETHER)))
            for number, (text, ended) in enumerate(found):
                both = texts[0][number], texts[1][number]
                assert text in both if ended else any(each.startswith(text) for each in both)
        assert (
            list(pool.map(lambda number: completion(cluster.url, f"prompt {number}")[0], range(TOGETHER))) == texts[1]
        )


@pytest.mark.parametrize("victim", ["ray::ServeReplica:ferrum:ingress", "ray::ProxyActor"])
def test_clients_get_an_error_when_the_ingress_or_the_proxy_is_killed(cluster: RayCluster, victim: str) -> None:
    cluster.wait_for_replicas(2)
    break_off(cluster, cluster.named(victim.encode()))
    cluster.wait_for_replicas(2)


@pytest.mark.parametrize("victim", ["gcs_server/gcs_server", "/raylet/raylet"])
def test_clients_get_an_error_when_ray_is_killed_and_nothing_is_left(
    model: Path, options: list[str], tmp_path: Path, victim: str
) -> None:
    cluster = RayCluster(tmp_path)
    try:
        cluster.deploy(model, "2", *options)
        cluster.wait_for_replicas(2)
        before = [*cluster.workers(), *cluster.engines()]
        break_off(cluster, cluster.named(victim.encode()))
        until = time.monotonic() + NOTICED_SECONDS
        while alive(before) and time.monotonic() < until:
            time.sleep(0.2)
        assert not alive(before), "processes outlive Ray"
    finally:
        cluster.close()


def break_off(cluster: RayCluster, killed: list[int]) -> None:
    """Kill processes under endless streams, which must not end as if they were whole."""
    endless = {"model": "tiny", "prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 8}
    assert killed
    last = ""
    until = time.monotonic() + NOTICED_SECONDS
    with pytest.raises(httpx.HTTPError):
        while time.monotonic() < until:
            with httpx.stream("POST", f"{cluster.url}/v1/completions", json=endless, timeout=120) as reply:
                reply.raise_for_status()
                for line in reply.iter_lines():
                    for each in killed:
                        kill(each)
                    last = line or last
            assert last == "data: [DONE]", "a stream stopped silently"
