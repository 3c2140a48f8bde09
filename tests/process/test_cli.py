"""The command line: options reach the engine, output goes to the right stream, every end has its exit code."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from command_kit import Outcome, answer
from engine_fakes import POISON, LetterTokenizer
from ferrum.cli.main import NEXT_STEPS, app, explain
from ferrum.cli.options import NOT_FOR_TEXT, engine_fields, option_names, read_options, sampling_fields
from ferrum.cli.run import DEMONSTRATION
from ferrum.client.client_base import engine_config
from ferrum.client.request_output import Delta
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import CapacityError, FerrumError, RequestError
from ferrum.core.option_fields import accepted
from ferrum.core.params import SamplingParams
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.sources import hub, local_models


@pytest.mark.contract("0.ferrum")
def test_run_prints_text_to_stdout_and_speed_to_stderr(ferrum: Callable[..., Outcome], built: list[Any]) -> None:
    code, out, err = ferrum("run", "some/model", "abc", "--max-tokens", "30", "--ignore-eos", "--seed", "5")
    assert (code, out) == (0, answer("abc", 30, ignore_eos=True) + "\n")
    assert "tokens/s" in err and "first token after" in err and "seed 5" in err
    assert built == [("some/model", {})]


def test_run_without_arguments_completes_python_with_the_built_in_model(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LetterTokenizer, "encode", lambda self, text, **_: [1 + ord(letter) % 90 for letter in text])
    code, out, _ = ferrum("run", "--max-tokens", "3", "--ignore-eos")
    assert code == 0 and out.startswith(DEMONSTRATION) and len(out) > len(DEMONSTRATION)
    assert built == [(hub.BUILT_IN, {})]
    compile(DEMONSTRATION, "demonstration", "exec")


def test_run_reads_the_prompt_from_standard_input(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("abc"))
    assert ferrum("run", "m", "-", "--max-tokens", "5")[1] == answer("abc", 5) + "\n"


@pytest.mark.parametrize(
    ("data", "reason"), [("a\n".encode("utf-16"), "is UTF-16"), (b"caf\xe9", "is not UTF-8 at byte 3")]
)
def test_standard_input_in_another_encoding_is_named(
    ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(data.decode(errors="surrogateescape")))
    code, _, err = ferrum("run", "m", "-")
    assert code != 0 and f"standard input {reason}" in err


EXAMPLES = {
    "float": ("0.5", 0.5),
    "int": ("7", 7),
    "int | None": ("7", 7),
    "bool": (None, True),
    "Sequence[str]": ("x", ("x",)),
    "Sequence[int]": ("7", (7,)),
    "Sequence[int] | None": ("7", (7,)),
    "Mapping[int, float] | None": ("7=-1.5", {7: -1.5}),
    "StructuredOutputs | None": ('{"regex": "[0-9]+"}', StructuredOutputs(regex="[0-9]+")),
}


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_every_sampling_parameter_has_an_option_that_reaches_the_engine(
    name: str, ferrum: Callable[..., Outcome], built: list[Any], asked_params: list[SamplingParams]
) -> None:
    field = next(field for field in fields(SamplingParams) if field.name == name)
    text, value = EXAMPLES[str(field.type)]
    option = "--" + name.replace("_", "-")
    more = ["--stop", "x"] if name == "include_stop_str_in_output" else []
    if name == "skip_special_tokens":
        option, value = "--no-skip-special-tokens", False
    if name == "dry_base":  # at least 1
        text, value = "1.5", 1.5
    code, _, err = ferrum("run", "m", "p", option, *([] if text is None else [text]), *more)
    if name in NOT_FOR_TEXT:
        assert code == 2 and "No such option" in err
    else:
        assert code == 0 and getattr(asked_params[0], name) == value


def test_a_removed_option_names_its_successor(ferrum: Callable[..., Outcome]) -> None:
    code, _, err = ferrum("run", "m", "--group", "64")
    assert code == 2 and "choose --quantize q8_0, q4_k_m or q4_0" in err


NEEDED: dict[str, dict[str, Any]] = {
    "num_speculative_tokens": {"speculative": "ngram"},
    "prefix_cache_gib": {"prefix_cache_dir": "here"},
    "record_gib": {"record_dir": "here"},
    "kernels": {"device": "cuda"},  # the last choice is for a GPU
    "cuda_graphs": {"device": "cuda"},
    "stall_seconds": {"replicas": 2},
}
"""Options that an option requires."""


@pytest.mark.parametrize("field", engine_fields(), ids=lambda field: field.name)
def test_every_engine_option_reaches_the_engine(
    field: Any, ferrum: Callable[..., Outcome], built: list[Any], asked_params: list[SamplingParams]
) -> None:
    choices = accepted(field.metadata)
    number = min(16 if field.default != 16 else 15, field.metadata.get("most") or 16)
    value: Any = choices[-1] if choices else "text" if str(field.type).startswith("str") else number
    if field.type == "bool":
        value = not field.default
    if field.name == "lora":
        value = ["a=here", "b=there"]
    if field.name == "device":
        value = "cuda:1"
    needed = NEEDED.get(field.name, {})
    words = [word for name, each in {**needed, field.name: value}.items() for word in words_of(name, each)]
    assert ferrum("run", "m", "p", *words)[0] == 0
    assert built == [("m", {**needed, field.name: value})]
    config = engine_config("m", built[0][1])
    found = getattr(config if hasattr(config, field.name) else config.model, field.name)
    assert (list(found) if isinstance(found, tuple) else found) == value
    if needed:
        code, _, err = ferrum("run", "m", "p", *words_of(field.name, value))
        assert code == 2 and words[-2] in err, "an option without effect is refused"


def words_of(name: str, value: Any) -> list[str]:
    """Return an engine option as it is typed."""
    field = next(each for each in engine_fields() if each.name == name)
    yes, *no = option_names(field)
    if isinstance(value, list):
        return [word for each in value for word in (yes, each)]
    return [yes, str(value)] if not no else [yes] if value else no


def test_options_of_another_device_are_refused_before_anything_loads(ferrum: Callable[..., Outcome]) -> None:
    for options, named in (
        (("--kernels", "cuda"), "use device=cuda"),
        (("--device", "metal"), "use device=cpu"),
        (("--device", "tpu"), "tpu"),
        (("--device", "cuda", "--threads", "2"), "threads"),
        (("--no-cuda-graphs",), "cuda_graphs"),
    ):
        code, _, err = ferrum("run", "m", "p", *options)
        assert code == 2 and named in err.replace("--cuda-graphs", "cuda_graphs").replace("--threads", "threads")
    code, _, err = ferrum("bench", "--shape", "qwen3-0.6b", "--device", "cuda")
    assert code == 2 and "bench/gpu/run.py" in err


OPTIONS_FILE = """
temperature = 0.25
max-sequence-length = 64
quantize = "int4"
max_tokens = 4
[run]
max-tokens = 3
stop = ["x", "y"]
prefix_cache = false
[serve]
port = 9000
"""


def test_the_command_line_overrides_the_options_file(
    ferrum: Callable[..., Outcome], built: list[Any], asked_params: list[SamplingParams], tmp_path: Path
) -> None:
    (tmp_path / "options.toml").write_text(OPTIONS_FILE)
    assert ferrum("--config", str(tmp_path / "options.toml"), "run", "m", "p", "--max-tokens", "5")[0] == 0
    assert built[0] == ("m", {"max_sequence_length": 64, "quantize": "int4", "prefix_cache": False})
    assert ferrum("--config", str(tmp_path / "options.toml"), "run", "m", "p")[0] == 0
    params, others = asked_params
    assert (params.temperature, params.max_tokens, params.stop) == (0.25, 5, ("x", "y"))
    assert others.max_tokens == 3, "a table overrides the general options"


def test_a_name_of_a_command_and_an_option_is_the_command_only_as_a_table(tmp_path: Path) -> None:
    program = get_command(app)
    (tmp_path / "options.toml").write_text("quantize = 'int4'")
    found = read_options(tmp_path / "options.toml", program)
    assert {name for name, defaults in found.items() if defaults} >= {"run", "plan", "serve", "quantize"}
    (tmp_path / "options.toml").write_text("[quantize]\nquantize = 'int4'")
    found = read_options(tmp_path / "options.toml", program)
    assert {name: defaults for name, defaults in found.items() if defaults and name != "bench"} == {
        "quantize": {"quantize": "int4"}
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("temprature = 1", "temprature"),
        ("[serve]\ntemperature = 1", "temperature"),
        ("[nowhere]\nport = 1", "nowhere"),
        ("run = 3", "run"),
        ("port = true", "port"),
        ("strict = 1", "strict"),
        ("stop = 'x'", "stop"),
        ("seed = [1]", "seed"),
        ("[bench]\nport = 1", "port"),
        ("temperature =", "options.toml"),
        ("version = true", "version"),
        ("config = 'other.toml'", "config"),
        ("stop = [['x']]", "stop"),
        ("stop = ['x', true]", "stop"),
        ("max-tokens = 3\nmax_tokens = 4", "--max-tokens"),
    ],
)
def test_an_invalid_options_file_is_refused_with_the_name(
    ferrum: Callable[..., Outcome], built: list[Any], tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "options.toml").write_text(text)
    code, _, err = ferrum("--config", str(tmp_path / "options.toml"), "run", "m", "p")
    assert (code, built) == (2, []) and err.startswith("ferrum: --config: ") and named in err
    assert ferrum("--config", str(tmp_path / "missing.toml"), "run", "m", "p")[0] == 2


def test_an_option_has_one_name_only() -> None:
    names = [field.name for field in [*sampling_fields(), *engine_fields()]]
    assert len(names) == len(set(names))
    assert {*names} >= {f.name for f in (*fields(EngineConfig), *fields(ModelConfig))} - {"model", "switches"}


def test_options_override_recommended_parameters(
    ferrum: Callable[..., Outcome], built: list[Any], asked_params: list[SamplingParams]
) -> None:
    ferrum("run", "m", "p")
    ferrum("run", "m", "p", "--temperature", "0.5")
    assert [params.temperature for params in asked_params] == [0.0, 0.5]


@pytest.mark.parametrize("text", ["some text", "def add(a, b):\n"])
def test_run_with_a_text_alone_completes_it_with_the_built_in_model(
    text: str, ferrum: Callable[..., Outcome], built: list[Any], asked_params: list[SamplingParams]
) -> None:
    assert ferrum("run", text)[0] == 0
    assert built == [(hub.BUILT_IN, {})]


def test_a_failure_is_one_line_with_exit_code_2(ferrum: Callable[..., Outcome], built: list[Any]) -> None:
    for arguments in (
        ["run", "m", chr(POISON + 31)],
        ["run", "m", ""],
        ["run", "m", "p", "--temperature", "9"],
        ["run", "m", "p", "--logit-bias", "seven"],
        ["run", "m", "p", "--logit-bias", "7=1", "--logit-bias", "7=2"],
        ["run", "m", "p", "--no-such-option"],
        ["chat"],
        ["no-such-command"],
        [],
    ):
        code, _, err = ferrum(*arguments)
        assert code == 2, arguments
        assert err.startswith("ferrum: ") and err.count("\n") == 1, err


@pytest.mark.parametrize(
    "arguments",
    [["run", "no/such/model"], ["run", "nosuchmodel"], ["plan", "nosuchmodel"], ["run", "~nobody-here/m"], ["run", ""]],
)
def test_a_missing_model_is_named(
    arguments: list[str], ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    code, _, err = ferrum(*arguments)
    assert code == 2 and arguments[1] in err and err.startswith("ferrum: MODEL") and err.count("\n") == 1


@pytest.mark.parametrize("option", ["record", "prefix-cache-dir"])
@pytest.mark.parametrize("path", ["", "~nobody-here/x"])
def test_an_invalid_directory_is_refused_with_its_option(
    option: str, path: str, ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ferrum("run", hub.BUILT_IN, "p", "--max-tokens", "1", f"--{option}", path)
    assert code == 2 and f"ferrum: --{option}" in err and not list(tmp_path.iterdir())


def test_every_kind_of_error_has_a_next_step() -> None:
    for kind in (RequestError, CapacityError, FerrumError, OSError, RuntimeError):
        problem, step = explain(kind("it broke"), get_command(app), ["run"])
        assert "it broke" in problem and step
    for wider, narrower in ((a, b) for i, (a, _) in enumerate(NEXT_STEPS) for b, _ in NEXT_STEPS[i + 1 :]):
        assert not issubclass(narrower, wider), f"{narrower} is hidden by {wider}"


def test_running_out_of_memory_is_no_internal_error() -> None:
    problem, step = explain(MemoryError("std::bad_alloc"), get_command(app), ["run"])
    assert "out of memory" in problem and "report" not in step


def test_ctrl_c_ends_with_130_and_ends_the_request(
    ferrum: Callable[..., Outcome], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrum.cli.run.echo_text", _interrupt)
    code, _, err = ferrum("run", "m", "p")
    assert (code, err) == (130, "")


def _interrupt(deltas: Iterator[Delta]) -> str:
    next(deltas)
    raise KeyboardInterrupt


def test_an_internal_error_is_no_traceback(ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_models, "list_models", lambda _: 1 / 0)
    code, _, err = ferrum("list")
    assert code == 2 and "ZeroDivisionError" in err and err.count("\n") == 1
