"""The `ferrum` command: its subcommands, and an exit code and one line for every way it can end.

    0 done    2 refused or failed, with one line that names the next step
    129 the terminal closed    130 interrupted    143 terminated

`ferrum bench compare` exits with 1 for a regression, `ferrum replay` and `ferrum selfcheck` with 1 for any different
bit, `ferrum launch` with the code of its client. Heavy modules are imported inside commands, so that the first token
comes about a second after the start.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ferrum.cli import (
    bench,
    chat,
    deploy,
    doctor,
    launch_agent,
    models,
    replay,
    run,
    serve,
)
from ferrum.cli.exit_codes import INTERRUPTED
from ferrum.core.config import await_ranks, torchrun_variables
from ferrum.core.errors import (
    CapacityError,
    CheckpointError,
    EngineDead,
    FerrumError,
    ModelNotFound,
    RecordDamaged,
    RecordNotFound,
    RequestError,
    Unsupported,
)
from ferrum.core.ranks import launched
from ferrum.core.version import installed_version

FAILED: Final = 2

app = typer.Typer(
    name="ferrum",
    help="An exact, small and fast inference engine for open-weight language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
GENERATE, MANAGE, DIAGNOSE = "Generate text", "Manage models", "Measure and diagnose"
app.command("run", rich_help_panel=GENERATE)(run.run)
app.command("chat", rich_help_panel=GENERATE)(chat.chat)
app.command("serve", rich_help_panel=GENERATE)(serve.serve)
app.command("deploy", rich_help_panel=GENERATE)(deploy.deploy)
app.command("launch", rich_help_panel=GENERATE)(launch_agent.launch)
app.command("list", rich_help_panel=MANAGE)(models.list_models)
app.command("pull", rich_help_panel=MANAGE)(models.pull)
app.command("quantize", rich_help_panel=MANAGE)(models.quantize)
app.command("plan", rich_help_panel=MANAGE)(models.plan)
app.command("formats", rich_help_panel=MANAGE)(models.formats)
app.add_typer(bench.app, name="bench", rich_help_panel=DIAGNOSE)
app.command("replay", rich_help_panel=DIAGNOSE)(replay.replay)
app.command("doctor", rich_help_panel=DIAGNOSE)(doctor.doctor)
app.command("selfcheck", rich_help_panel=DIAGNOSE)(doctor.selfcheck)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and the kernels, then exit.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with options by their long names, for all commands or in a table per command. Options on "
            "the command line override it.",
        ),
    ] = None,
) -> None:
    if version:
        typer.echo(f"ferrum {installed_version()} ({doctor.kernel_tier()})")
        raise typer.Exit
    if config is not None:
        from ferrum.cli.options import read_options

        context.default_map = read_options(config, context.command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Exceptions leave it only under `python -X dev`."""
    try:
        if ran_as_rank(arguments):
            return 0
        code = app(list(arguments), prog_name="ferrum", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as end:
        if end.code != 1:
            raise
        # Typer exits with 1 when the reader of the output is gone. Buffered output must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _fail(*explain(error, typer.main.get_command(app), arguments))
    return code if isinstance(code, int) else 0


def ran_as_rank(arguments: Sequence[str]) -> bool:
    """If torchrun made this process a rank but the first, run it until rank 0 ends. Return whether it was one."""
    if not {"run", "chat", "serve"} & {*arguments[:3]}:  # a file of options may precede it
        return False
    launch = launched(torchrun_variables())
    if launch is None:
        return False
    if launch.rank == 0:
        await_ranks(launch.ranks)
        return False
    from ferrum.runtime.launched_ranks import join
    from ferrum.runtime.rank_worker import child

    join(launch, child)
    return True


def _fail(problem: str, step: str) -> int:
    """Print an error as one line, whatever its message looks like."""
    line = " ".join(problem.split()).rstrip(".")
    print(f"ferrum: {line}; {step}" if step else f"ferrum: {line}", file=sys.stderr)
    return FAILED


# ---- Errors in terms of the command line: the option as typed, what is wrong with it, and what to do next ----
#
# Errors name fields, such as `max_tokens`; a user typed `--max-tokens`.

NEXT_STEPS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (ModelNotFound, ""),  # its message has a next step
    (RecordNotFound, "give the directory of the records with --record"),
    (CapacityError, "ask for less, or see `ferrum plan MODEL` for what fits"),
    (CheckpointError, "check the files, or download them again with `ferrum pull MODEL`"),
    (Unsupported, "`ferrum doctor` shows what this machine supports"),
    (RecordDamaged, "record the request again"),
    (EngineDead, "run the command again; `ferrum doctor` shows this machine's setup"),
    (MemoryError, "ask for fewer tokens or sequences at a time, or use a smaller model"),
    (FerrumError, "`ferrum doctor` shows this machine's setup"),
    (OSError, "`ferrum doctor` shows this machine's setup"),
)
"""What to do about an error, by its class; the first match counts."""

OPTION_STEPS: Final = {
    "port": "choose another --port, or 0 for a free one",
    "url": "start a server with `ferrum serve MODEL`, or give its --url",
    "config": "see `ferrum --help`",
    "model": "",  # such messages have a next step
}
"""What to do about an invalid option, where omitting it does not help."""

REMOVED: Final = {
    "--group": "remove it: a format decides how many inputs share a scale; choose --quantize q8_0, q4_k_m or q4_0"
}
"""What to use instead of an option of earlier versions."""

_PHRASE: Final = re.compile(r"(must|cannot be|has|have|is|needs|requires|holds) ")
"""How a message begins that continues the option's name."""

_DEFAULT: Final = re.compile(r"[(;] ?default: ([^();]+)\)")


def explain(error: Exception, program: Any, arguments: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong and what to do next.

    Args:
        error: what ended the command.
        program: the click group of all commands.
        arguments: the command line.
    """
    command, path = find_command(program, arguments)
    if isinstance(error, typer.TyperException):
        return _usage_error(error, path, arguments)
    known = next((step for kind, step in NEXT_STEPS if isinstance(error, kind)), None)
    if isinstance(error, RequestError):
        parameters = [*command.params, *program.params]
        parameter = next((each for each in parameters if each.name == error.param), None)
        problem = _renamed(error, parameter, command)
        own_step = not isinstance(error, ModelNotFound | RecordNotFound)
        return problem, _option_step(parameter, path, arguments) if own_step else known or ""
    if isinstance(error, MemoryError):
        return f"out of memory: {error}", known or ""
    if known is not None:
        return str(error), known
    return f"internal error: {type(error).__name__}: {error}", "please report it, with the output of `ferrum doctor`"


def _usage_error(error: typer.TyperException, path: str, arguments: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong with a command line that could not be parsed, and the next step."""
    parameter, message = getattr(error, "param", None), getattr(error, "message", "")
    if parameter is None or not message:
        removed = REMOVED.get(getattr(error, "option_name", ""))
        return error.format_message() or "no command given", removed or f"see `{path} --help`"
    _, separator, rule = message.partition("Input ")  # as pydantic words it
    if not separator:
        return f"{typed(parameter)}: {message}", _option_step(parameter, path, arguments)
    problem = f"{typed(parameter)} {rule.partition(',')[0]}, not {_given(parameter, arguments)!r}"
    return problem, _option_step(parameter, path, arguments)


def _given(parameter: Any, arguments: Sequence[str]) -> str | None:
    """Return an option's text on the command line, if it is there."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in parameter.opts:
            return value if equals else following
    return None


def typed(parameter: Any) -> str:
    """Return an option as it is typed, or an argument as `--help` shows it."""
    longest = str(max(parameter.opts, key=len))
    return longest if longest.startswith("-") else parameter.metavar or longest.upper()


def _renamed(error: RequestError, parameter: Any, command: Any) -> str:
    """Return an error's message with options in place of fields."""
    names = {each.name: typed(each) for each in command.params}

    def option(match: re.Match[str]) -> str:
        return match[1] + names.get(match[2], match[2])

    # Names of one word are words of English, too: they count only where a message refers to a field.
    message = re.sub(r"()\b([a-z]+(?:_[a-z0-9]+)+)\b", option, error.message)
    message = re.sub(r"\b((?:requires|without|needs|enable) )([a-z]+)\b", option, message)
    message = re.sub(r"()`([a-z]+)`", option, message)
    if parameter is None:
        return message if error.param is None else f"{error.param}: {message}"
    joint = " " if _PHRASE.match(message) or message.startswith(("'", '"')) else ": "
    return f"{typed(parameter)}{joint}{message}"


def _option_step(parameter: Any, path: str, arguments: Sequence[str]) -> str:
    if parameter is None:
        return f"see `{path} --help`"
    option, found = typed(parameter), _DEFAULT.search(getattr(parameter, "help", None) or "")
    default = found[1] if found else parameter.default
    if parameter.name in OPTION_STEPS:
        return OPTION_STEPS[parameter.name]
    if _given(parameter, arguments) is None or default in (None, [], False):
        return f"see {option} in `{path} --help`"
    return f"omit {option} for its default, {default}"


def find_command(program: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """Return the click command that arguments call, and its path."""
    command, path = program, "ferrum"
    for word in arguments:
        commands = getattr(command, "commands", None)
        if commands is None:
            break
        if word in commands:
            command, path = commands[word], f"{path} {word}"
    default = getattr(command, "default_command", None)  # `ferrum bench` alone is `ferrum bench run`
    return (command if default is None else command.commands[default]), path
