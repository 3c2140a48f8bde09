"""`ferrum list`, `pull`, `doctor` and `bench compare`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_kit import cell_of, report_of
from command_kit import Outcome
from ferrum.core.errors import ConfigError
from ferrum.core.memory_plan import MemoryPlan
from ferrum.sources import hub, local_models


@pytest.mark.contract("0.ferrum")
def test_list_and_pull_show_models(
    ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = local_models.LocalModel("org/name", tmp_path, 3 << 20, "Qwen3ForCausalLM")
    monkeypatch.setattr(local_models, "list_models", lambda _: [here])
    monkeypatch.setattr(hub, "pull", lambda name, revision: here if (name, revision) == ("org/name", "v1") else None)
    for code, out, _ in (ferrum("list"), ferrum("pull", "org/name", "--revision", "v1")):
        assert code == 0
        assert out.splitlines()[-1].split() == ["org/name", "3.0", "MiB", "Qwen3ForCausalLM", str(tmp_path)]


@pytest.mark.contract("0.ferrum")
@pytest.mark.contract("4.switches")
def test_doctor_shows_the_switches(ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRUM_LOG_TOKENS", "1")
    code, out, _ = ferrum("doctor")
    shown = {line[:18].strip(): line[18:].strip() for line in out.splitlines()}
    assert code == 0
    assert (shown["log tokens"], shown["disable graphs"]) == ("on", "off")
    assert shown["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert int(shown["cores allowed"].split()[0]) >= 1
    assert shown["backend reference"].startswith("yes: reference") and shown["backend cuda"].startswith("no: ")
    monkeypatch.setenv("FERRUM_PAGED_KV", "0")
    code, out, _ = ferrum("doctor")
    assert code == 0 and "refused: FERRUM_PAGED_KV" in out


def test_doctor_shows_the_limits_of_a_control_group(
    ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrum.kernels.cpu.library.cpu_quota", lambda *_: 1.2)
    monkeypatch.setattr("ferrum.runtime.memory.memory_left", lambda *_: 3 << 20)
    shown = {line[:18].strip(): line[18:].strip() for line in ferrum("doctor")[1].splitlines()}
    assert shown["cores allowed"].startswith("1 of ") and shown["memory"].endswith("3.0 MiB of it available")


def test_doctor_shows_that_the_system_refuses_threads(
    ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object, **named: object) -> None:
        raise ConfigError("the system refuses threads", param="threads")

    monkeypatch.setattr("ferrum.runtime.backend.NativeKernels", refused)
    code, out, _ = ferrum("doctor")
    assert code == 0 and "no: threads: the system refuses threads" in out


def test_plan_lists_powers_of_two_up_to_the_context() -> None:
    plan = MemoryPlan(weights=0, activations=0, activation_row=0, tables=0, pool=())
    for context, lengths in ((1024, [256, 512, 1024]), (1000, [256, 512, 1000]), (100, [100])):
        assert [length for length, _ in plan.fitting(context)] == lengths


def test_bench_compare_exits_with_1_for_a_regression_and_2_for_an_invalid_file(
    ferrum: Callable[..., Outcome], tmp_path: Path
) -> None:
    good, bad, none = (str(tmp_path / name) for name in ("good.json", "bad.json", "none.json"))
    report_of(cell_of("w", 0.8)).write(Path(good))
    report_of(cell_of("w", 0.7)).write(Path(bad))
    assert ferrum("bench", "compare", good, good)[0] == 0
    code, out, _ = ferrum("bench", "compare", good, bad)
    assert code == 1 and "regressed" in out
    report_of(cell_of("w", 0.4, None)).write(Path(none))
    code, out, err = ferrum("bench", "compare", good, none)
    assert code == 2 and "unknown" in out and "no change can be judged" in err
    for nonsense in (b"[]", b"{}", b"junk", b"\xff\xfe", b"[" * 100_000):
        Path(none).write_bytes(nonsense)
        code, _, err = ferrum("bench", "compare", good, none)
        assert code == 2 and none in err
    for missing in (tmp_path / "missing.json", tmp_path):
        code, _, err = ferrum("bench", "compare", good, str(missing))
        assert code == 2 and str(missing) in err


@pytest.mark.parametrize("command", [[], ["serve"]])
@pytest.mark.parametrize("path", ["missing/a.json", "", "file/a.json", "a" * 300], ids=lambda path: path[:8])
def test_an_unwritable_report_is_refused_before_measuring(
    ferrum: Callable[..., Outcome], tmp_path: Path, command: list[str], path: str
) -> None:
    (tmp_path / "file").touch()
    code, _, err = ferrum("bench", *command, "--output", str(tmp_path / path))
    assert code == 2 and err.startswith("ferrum: --output") and str(tmp_path) in err
    assert [each.name for each in tmp_path.iterdir()] == ["file"], "the check writes nothing"
