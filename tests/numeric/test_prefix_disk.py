"""The persistent prefix cache: engines reuse each other's pages, and never use damaged ones."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrum import LLM, SamplingParams
from ferrum.cache.pool import HashedPage
from ferrum.core.errors import ConfigError
from ferrum.core.step import Span, StepBatch, Want
from ferrum.kernels.operations import Bytes
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.kv_tiers.page_tier import PageFiles
from ferrum.verbs.load_executor import load_executor
from native_twin import require_native
from tiny import directory_of, find, tokens_of

CASE = "qwen3-windows"
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=8, logprobs=0)
PAGE = 64


def prompt() -> list[int]:
    return tokens_of(find(CASE), 3 * PAGE + 7, seed=9)


def opened(directory: Path | None, case: str = CASE, **options: Any) -> LLM:
    kept = {} if directory is None else {"prefix_cache_dir": str(directory)}
    usual = {"kernels": "reference", "dtype": "float32", "kv_capacity": 1024}
    return LLM(str(directory_of(find(case))), **{**usual, **kept, **options})


def answer(llm: LLM) -> tuple[list[int], object, int]:
    (output,) = llm.generate([prompt()], PARAMS, use_tqdm=False)
    return output.outputs[0].token_ids, output.outputs[0].logprobs, output.metrics.usage.cached_tokens


def filled(directory: Path, **options: Any) -> tuple[list[int], object, int]:
    """Return the answer of an engine with an empty cache, which writes its pages to disk."""
    with opened(directory, **options) as llm:
        return answer(llm)


def pages(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.page"))


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_reading_and_writing_a_page_keeps_its_content(kernels: str, kv_dtype: str) -> None:
    if kernels == "native":
        require_native()
    name = directory_of(find(CASE))
    with load_executor(name, kernels=kernels, dtype="float32", kv_dtype=kv_dtype, kv_capacity=1024) as executor:
        tokens = tuple(prompt())
        (first,) = executor.submit(StepBatch((Span("a", 0, tokens, Want.LOGITS),))).result().results
        lm = executor.lm
        lm.pages.reserve("b", len(tokens) - 1)
        for group in lm.pages.groups:
            for source, target in zip(lm.pages.row("a", group.name), lm.pages.row("b", group.name), strict=False):
                if source >= 0:
                    data = lm.kernels.read_page(group.name, source)
                    assert data.shape == (lm.kernels.page_bytes(group.name),)
                    lm.kernels.write_page(group.name, target, data)
        lm.pages.commit("b", len(tokens) - 1)
        (second,) = executor.submit(StepBatch((Span("b", len(tokens) - 1, tokens[-1:], Want.LOGITS),))).result().results
        np.testing.assert_array_equal(first.logits, second.logits)


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_an_engine_finds_the_pages_of_another(tmp_path: Path, kernels: str, caplog: pytest.LogCaptureFixture) -> None:
    if kernels == "native":
        require_native()
    caplog.set_level(logging.INFO)
    first = filled(tmp_path, kernels=kernels)
    assert "tokens found" not in caplog.text
    with opened(tmp_path, kernels=kernels) as llm:
        assert answer(llm) == (*first[:2], 3 * PAGE) and first[2] == 0
    assert f"{3 * PAGE} of {len(prompt())} prompt tokens found" in caplog.text


def test_a_failed_write_affects_no_other_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    every = len(pages(filled(tmp_path / "all") and tmp_path / "all"))
    write, failures = PageFiles.put, [MemoryError("no room")]

    def scarcely(files: PageFiles, name: bytes, content: Bytes) -> None:
        if failures:
            raise failures.pop()
        write(files, name, content)

    monkeypatch.setattr(PageFiles, "put", scarcely)
    filled(tmp_path / "some")
    assert len(pages(tmp_path / "some")) == every - 1 > 0
    assert "cannot write a page to disk" in caplog.text


def test_a_slow_disk_delays_only_requests_that_restore_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = filled(tmp_path)
    asked, may_read = threading.Event(), threading.Event()
    read = PageFiles.get

    def slowly(files: PageFiles, name: bytes, size: int) -> Bytes | None:
        asked.set()
        assert may_read.wait(300)
        return read(files, name, size)

    monkeypatch.setattr(PageFiles, "get", slowly)
    with opened(tmp_path) as llm, ThreadPoolExecutor() as others:
        waiting = others.submit(answer, llm)
        assert asked.wait(300)
        llm.generate([prompt()[:9]], PARAMS, use_tqdm=False)
        assert not waiting.done()
        may_read.set()
        assert waiting.result(300) == (*expected[:2], 3 * PAGE)


def test_two_engines_may_share_a_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as two:
        expected = answer(one)[:2]
        assert answer(two)[:2] == expected == answer(one)[:2]


@pytest.mark.parametrize("other", [{"case": "qwen3"}, {"dtype": "bfloat16"}, {"kv_dtype": "int8"}], ids=str)
def test_pages_of_another_model_or_format_are_not_found(tmp_path: Path, other: dict) -> None:
    filled(tmp_path, **other)
    with opened(tmp_path) as llm:
        assert answer(llm)[2] == 0


def test_pages_of_another_arithmetic_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ReferenceKernels, "numerics_id", "ferrum-0")
        filled(tmp_path)
    with opened(tmp_path) as llm:
        assert answer(llm)[2] == 0


@pytest.mark.parametrize(
    ("case", "one", "other"),
    [
        ("llama-dynamic", {"max_sequence_length": 512}, {"max_sequence_length": 256}),
        (CASE, {"quantize": "int8", "kv_dtype": "int8", "dtype": "bfloat16"}, {"quantize": "int8", "kv_dtype": "int8"}),
        (CASE, {"quantize": "q4_k_m", "kv_dtype": "int8"}, {"quantize": "q4_0", "kv_dtype": "int8"}),
    ],
    ids=["rope for a context", "rounded before", "schemes"],
)
def test_pages_of_options_that_change_bits_are_not_found(
    tmp_path: Path, case: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    computed = filled(tmp_path, case=case, **one)
    with opened(tmp_path, case=case, **other) as llm:
        assert answer(llm)[2] == 0
    with opened(tmp_path, case=case, **one) as llm:
        assert answer(llm) == (*computed[:2], 3 * PAGE)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_damaged_pages_are_recomputed(tmp_path: Path, damage: str) -> None:
    expected = filled(tmp_path)
    files = pages(tmp_path)
    whole = [path.read_bytes() for path in files]
    assert len(files) >= 4
    for index, path in enumerate(files):
        data = bytearray(whole[index])
        if damage == "flip":
            data[-1 - index] ^= 4
        elif damage == "swap":
            data = bytearray(whole[index - 1])
        path.write_bytes(data[: {"cut": len(data) // 2, "empty": 0}.get(damage, len(data))])
    with opened(tmp_path) as llm:
        assert answer(llm) == expected
    assert [path.read_bytes() for path in pages(tmp_path)] == whole, "the good pages are written again"


def test_pages_survive_a_killed_process(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys, time
from pathlib import Path
from ferrum import LLM, SamplingParams
llm = LLM({str(directory_of(find(CASE)))!r}, kernels="reference", dtype="float32", kv_capacity=1024,
          prefix_cache_dir={str(tmp_path)!r})
llm.generate([{prompt()}], SamplingParams(max_tokens=1), use_tqdm=False)
while len(list(Path({str(tmp_path)!r}).glob("*.page"))) < 4:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script], env=os.environ, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    with opened(None) as llm:
        expected = answer(llm)
    with opened(tmp_path) as llm:
        assert answer(llm)[:2] == expected[:2]


READER = """
import json, os, sys
from pathlib import Path
from ferrum import LLM, SamplingParams
name, directory, prompt = json.loads(sys.argv[1])
with LLM(name, kernels="reference", dtype="float32", kv_capacity=1024, prefix_cache_dir=directory) as llm:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=8, logprobs=0)
    other = [int(prompt[0] == 0)] * 9  # the prompt begins otherwise, or it would find this in memory
    llm.generate([other], params, use_tqdm=False)  # all that is needed is imported
    os.chmod(directory, 0o555)
    if os.getuid() == 0:  # who may write everywhere
        os.setgid(65534)
        os.setuid(65534)
    try:
        Path(directory, "mine").touch()
        sys.exit("it can be written to")
    except PermissionError:
        pass
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    print(json.dumps([list(output.outputs[0].token_ids), output.metrics.usage.cached_tokens]))
"""


def test_a_read_only_directory_is_used_for_reading() -> None:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        expected = filled(directory)
        damaged = pages(directory)[0]
        damaged.write_bytes(damaged.read_bytes()[:-1])
        for path in (directory, *directory.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o444)
        before = [path.read_bytes() for path in pages(directory)]
        arguments = json.dumps([str(directory_of(find(CASE))), made, prompt()])
        command = [sys.executable, "-c", READER, arguments]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        finally:
            directory.chmod(0o700)
        assert ended.returncode == 0, ended.stderr
        tokens, cached = json.loads(ended.stdout)
        assert tokens == list(expected[0]) and cached % PAGE == 0 and cached <= 3 * PAGE
        assert "is damaged" in ended.stderr and ended.stderr.count("cannot write") <= 1
        assert [path.read_bytes() for path in pages(directory)] == before


def test_the_directory_needs_the_prefix_cache() -> None:
    with pytest.raises(ConfigError) as caught:
        LLM("ferrum-tiny", prefix_cache=False, prefix_cache_dir="/nowhere")
    assert caught.value.param == "prefix_cache_dir"


def test_a_small_pool_restores_what_fits(tmp_path: Path) -> None:
    expected = filled(tmp_path)
    name = str(directory_of(find(CASE)))
    with LLM(name, kernels="reference", dtype="float32", kv_capacity=4 * PAGE, prefix_cache_dir=str(tmp_path)) as llm:
        assert answer(llm)[:2] == expected[:2]
        other = tokens_of(find(CASE), 3 * PAGE, seed=1)
        llm.generate([other], SamplingParams(max_tokens=1), use_tqdm=False)
        assert answer(llm)[:2] == expected[:2], "its pages were evicted and restored"


def test_an_unused_executor_frees_its_pool(tmp_path: Path) -> None:
    executor = load_executor(directory_of(find(CASE)), kernels="reference", kv_capacity=1024)
    executor.keep_pages(files=PageFiles(tmp_path, 1 << 30))
    pages = weakref.ref(executor.lm.pages)
    del executor
    gc.collect()
    assert pages() is None


def test_a_refused_writer_thread_costs_one_page(tmp_path: Path, monkeypatch, caplog) -> None:
    executor = load_executor(directory_of(find(CASE)), kernels="reference", kv_capacity=1024)
    executor.keep_pages(files=PageFiles(tmp_path, 1 << 30))
    tier, start = executor.lm.pages.restores.tier, threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no more threads")))
    tier.keep("layers0", HashedPage(0, bytes(32)))
    assert "cannot write a page to disk: no more threads" in caplog.text
    monkeypatch.setattr(threading.Thread, "start", start)
    tier.keep("layers0", HashedPage(0, bytes(32)))
    executor.shutdown()


def test_a_refused_reader_thread_costs_the_pages_on_disk(tmp_path: Path, monkeypatch, caplog) -> None:
    first = filled(tmp_path)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("ferrum-restore"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with opened(tmp_path) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert answer(llm) == (*first[:2], 0)
        assert "cannot read pages from disk" in caplog.text
        assert answer(llm)[:2] == first[:2]
