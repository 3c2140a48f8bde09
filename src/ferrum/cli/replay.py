"""`ferrum replay`: runs a recorded request again, bit for bit, and explains what happened to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ferrum.cli.options import chosen, engine_fields, with_options
from ferrum.cli.run import show_log
from ferrum.cli.tables import print_table
from ferrum.core.errors import RecordMismatch
from ferrum.engine.model_client import ModelClient
from ferrum.engine.records.explain import Passage, passages
from ferrum.engine.records.record import Record
from ferrum.engine.request_output import CompletionOutput, Logprobs, RequestOutput

DIFFERENT: Final = 1
"""The exit code where anything is not as it was recorded."""

DEFAULT_TOP: Final = 3

REPLAY_FIELDS: Final = [field for field in engine_fields() if field.name not in ("host", "record_dir", "record_gib")]


@with_options(REPLAY_FIELDS, "Model and engine, in place of the recorded ones")
def replay(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a reply, or the file of its record.")],
    record: Annotated[Path, typer.Option(metavar="DIR", help="Where the request was recorded.")] = Path(),
    model: Annotated[
        str | None, typer.Option(help="Where the model is now; the recorded directory or name if not given.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the likeliest tokens to show of each.")] = DEFAULT_TOP,
    **options: Any,
) -> None:
    """Run a recorded request again and compare every token and log-probability; exits with 1 where any differs."""
    from ferrum.engine.records.record import read_record
    from ferrum.engine.records.record_files import find_record

    show_log()
    path = Path(id) if os.path.isfile(id) else find_record(record, id)  # noqa: PTH113 - an id may be too long for a path
    recorded = read_record(path)
    typer.echo("\n".join(_head(recorded)))
    _print_schedule(recorded)
    try:
        same = _run_again(recorded, model, path.parent, top, chosen(REPLAY_FIELDS, options))
    except RecordMismatch as error:
        typer.echo(f"ferrum: {error}", err=True)
        raise typer.Exit(DIFFERENT) from None
    if not same:
        raise typer.Exit(DIFFERENT)


def _run_again(recorded: Record, model: str | None, memory: Path, top: int, options: dict[str, Any]) -> bool:
    """Load the model, run the request, print what came of it; whether all bits are the same.

    Args:
        memory: the directory that remembers digests of models.

    Raises:
        RecordMismatch: the model or its numerics are not the recorded ones.
    """
    from ferrum.engine.llm import LLM
    from ferrum.engine.offline_batch import stream
    from ferrum.engine.records.recorder import Source
    from ferrum.engine.records.replayer import Replay, check_origin, check_room, engine_options
    from ferrum.runtime.hub import resolve_model
    from ferrum.runtime.model_digest import model_digest

    origin = recorded.origin
    directory = resolve_model(model or _place(recorded))
    # What cannot be compared need not be loaded.
    check_origin(origin, replace(origin, digest=model_digest(directory, memory)))
    with LLM(str(directory), **engine_options(origin, options)) as llm:
        assert llm.client.config is not None
        check_origin(origin, Source(llm.client.config, directory, memory).origin(llm.info))
        check_room(recorded, min(llm.info.max_sequence_length, llm.info.kv_capacity + 1))
        again = Replay(recorded, top)
        for delta in stream(llm.client.router, llm.client.tokenizer, again.request):
            again.push(delta)
        output, differences = again.output(), again.differences()
        _print_tokens(output, llm.client, top)
    for difference in differences:
        typer.echo(f"not the same bits: {difference}")
    if not differences:
        typer.echo(f"same bits: {_counted(recorded)}")
    return not differences


def _place(recorded: Record) -> str:
    """Where the recorded model is most likely to be found."""
    directory = recorded.origin.directory
    return directory if directory is not None and Path(directory).is_dir() else recorded.origin.model


def _head(recorded: Record) -> list[str]:
    origin, request, params = recorded.origin, recorded.request, recorded.request.params
    when = datetime.fromtimestamp(recorded.time).astimezone().isoformat(" ", "seconds")
    told = "".join(
        f"; {item.name}={value}"
        for item in fields(params)
        if item.name != "seed" and (value := getattr(params, item.name)) != item.default
    )
    lines = [
        f"{recorded.id}, {when}",
        f"{origin.model}, weights {origin.weights}, keys and values {origin.kv_format}, {origin.numerics_id}",
        f"{len(request.prompt)} prompt tokens; seed {request.seed}{told}",
    ]
    if recorded.end is None:
        lines.append("the record has no end: the request was running when it was written last")
    else:
        ends = (f"{each.finish_reason} after {each.tokens}" for each in recorded.end.choices)
        lines.append(f"ended by {', '.join(ends)}; {recorded.end.cached_tokens} prompt tokens from the prefix cache")
    return lines


def _print_schedule(recorded: Record) -> None:
    """Pieces of the prompt, what was found, guesses."""
    rows = [_passage_row(each) for each in passages(recorded)]
    typer.echo()
    print_table([("STEPS", "CHOICE", "WORK", "FROM", "TOKENS", "FOUND", "GUESSES", "SAMPLED", "ROWS OF STEP"), *rows])


def _passage_row(passage: Passage) -> tuple[str, ...]:
    steps = f"{passage.first_step}"
    if passage.last_step > passage.first_step:
        steps += f"-{passage.last_step}"
    return (
        steps,
        str(passage.choice),
        str(passage.work),
        str(passage.start),
        str(passage.tokens),
        str(passage.found) if passage.found else "",
        f"{passage.accepted} of {passage.drafted}" if passage.drafted else "",
        str(passage.sampled) if passage.sampled else "",
        str(passage.most_rows),
    )


def _print_tokens(output: RequestOutput, client: ModelClient, top: int) -> None:
    """Every token with its log-probability and the likeliest ones of its position."""
    for choice in output.outputs:
        typer.echo()
        rows = _token_rows(choice, client, top)
        print_table([(f"CHOICE {choice.index}", "TOKEN", "LOGPROB", "RANK", *(["LIKELIEST"] if top else [])), *rows])
    typer.echo()


def _token_rows(choice: CompletionOutput, client: ModelClient, top: int) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for place, (token, position) in enumerate(zip(choice.token_ids, choice.logprobs or (), strict=True)):
        entry = position[token]
        likeliest = [_likeliest(position, client, top)] if top else []
        rows.append((str(place), _shown(token, client), f"{entry.logprob:.6f}", str(entry.rank), *likeliest))
    return rows


def _likeliest(position: Logprobs, client: ModelClient, top: int) -> str:
    ranked = sorted(position.items(), key=lambda item: item[1].rank)[:top]
    return "  ".join(f"{_shown(token, client)} {each.logprob:.4f}" for token, each in ranked)


def _shown(token: int, client: ModelClient) -> str:
    return str(token) if client.tokenizer is None else f"{token} {client.tokenizer.token_text(token)!r}"


def _counted(recorded: Record) -> str:
    tokens = sum(len(recorded.sampled(choice)) for choice in range(recorded.request.params.n))
    prompt = 0 if recorded.end is None else len(recorded.end.prompt_logprobs or ())
    vector = recorded.end is not None and recorded.end.embedding is not None
    parts = [f"{tokens} tokens and their log-probabilities"]
    parts += [f"{prompt} log-probabilities of the prompt"] if prompt else []
    parts += ["the vector"] if vector else []
    return ", ".join(parts)
