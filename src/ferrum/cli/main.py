"""The `ferrum` command: finds the subcommand, and turns every way it can end into a line and an exit code.

    0 done    2 refused or failed, with one line that says what to do next
    129 the terminal closed    130 interrupted    143 terminated

`ferrum bench compare` ends with 1 where it found a regression and with 2 where nothing could be judged, `ferrum replay`
with 1 where a bit is not what it was.

Nothing heavy is imported before a command needs it: the first token is to come about a second after the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from ferrum.cli import bench, chat, doctor, models, plan, quantize, replay, run, serve
from ferrum.cli.start import INTERRUPTED
from ferrum.core.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    EngineDead,
    FerrumError,
    ModelNotFound,
    RecordDamaged,
    RequestError,
    Unsupported,
)

FAILED: Final = 2

NEXT_STEPS: Final[tuple[tuple[type[FerrumError], str], ...]] = (
    (ModelNotFound, ""),  # says itself where to look
    (ConfigError, "see the command's --help"),
    (RequestError, "see the command's --help"),
    (CapacityError, "ask for less, or see `ferrum plan MODEL` for what fits"),
    (CheckpointError, "check the files, or fetch them again with `ferrum pull MODEL`"),
    (Unsupported, "`ferrum doctor` shows what this machine can do"),
    (RecordDamaged, "what is damaged cannot be believed: record the request again"),
    (EngineDead, "run the command again; `ferrum doctor` shows what it ran on"),
)
"""What to do about an error, by its class; the first that fits counts."""

app = typer.Typer(
    name="ferrum",
    help="An exact, small and fast inference engine for open-weight language models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.add_typer(bench.app, name="bench")
app.command("plan")(plan.plan)
app.command("replay")(replay.replay)
app.command("quantize")(quantize.quantize)
app.command("list")(models.list_models)
app.command("pull")(models.pull)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of options by their long names: for all commands, or in a table for one. The command line "
            "goes before it.",
        ),
    ] = None,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("ferrum"))
        raise typer.Exit
    if config is not None:
        from ferrum.cli.options_file import read_options

        context.default_map = read_options(config, context.command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run the command line; its exit code. Never raises, but under `python -X dev` or when it is terminated."""
    try:
        code = app(list(arguments), prog_name="ferrum", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as end:
        if end.code != 1:
            raise
        # So typer ends where whoever read the output has enough. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _fail(*explain(error))
    return code if isinstance(code, int) else 0


def explain(error: Exception) -> tuple[str, str]:
    """What went wrong and what to do next, each in a few words."""
    for kind, step in NEXT_STEPS:
        if isinstance(error, kind):
            return str(error), step
    if isinstance(error, MemoryError):
        return f"there is no memory left: {error}", "ask for fewer tokens or sequences at a time, or a smaller model"
    if isinstance(error, typer.TyperException):
        return error.format_message() or "no command was named", "see `ferrum --help`"
    if isinstance(error, FerrumError | OSError):
        return str(error), "`ferrum doctor` shows what this machine has"
    return f"internal error: {type(error).__name__}: {error}", "please report it, with the output of `ferrum doctor`"


def _fail(problem: str, step: str) -> int:
    """One line, whatever the message looks like."""
    told = " ".join(problem.split()).rstrip(".")
    print(f"ferrum: {told}; {step}" if step else f"ferrum: {told}", file=sys.stderr)
    return FAILED
