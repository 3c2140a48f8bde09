"""The `ferrum` command: its subcommands, and an exit code and one line for every way it can end.

    0 done    2 refused or failed, with one line that names the next step
    129 the terminal closed    130 interrupted    143 terminated

`ferrum bench compare` exits with 1 for a regression, `ferrum replay` and `ferrum selfcheck` with 1 for any different
bit, `ferrum launch` with the code of its client. Heavy modules are imported inside commands, so that the first token
comes about a second after the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from ferrum.cli import (
    bench,
    chat,
    doctor,
    launch_agent,
    models,
    output_formats,
    plan,
    quantize,
    replay,
    run,
    selfcheck,
    serve,
)
from ferrum.cli.error_lines import explain
from ferrum.cli.exit_codes import INTERRUPTED
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
app.command("launch", rich_help_panel=GENERATE)(launch_agent.launch)
app.command("list", rich_help_panel=MANAGE)(models.list_models)
app.command("pull", rich_help_panel=MANAGE)(models.pull)
app.command("quantize", rich_help_panel=MANAGE)(quantize.quantize)
app.command("plan", rich_help_panel=MANAGE)(plan.plan)
app.command("formats", rich_help_panel=MANAGE)(output_formats.formats)
app.add_typer(bench.app, name="bench", rich_help_panel=DIAGNOSE)
app.command("replay", rich_help_panel=DIAGNOSE)(replay.replay)
app.command("doctor", rich_help_panel=DIAGNOSE)(doctor.doctor)
app.command("selfcheck", rich_help_panel=DIAGNOSE)(selfcheck.selfcheck)


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
        from ferrum.cli.options_file import read_options

        context.default_map = read_options(config, context.command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Exceptions leave it only under `python -X dev`."""
    try:
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


def _fail(problem: str, step: str) -> int:
    """Print an error as one line, whatever its message looks like."""
    line = " ".join(problem.split()).rstrip(".")
    print(f"ferrum: {line}; {step}" if step else f"ferrum: {line}", file=sys.stderr)
    return FAILED
