"""`ferrum replay`: runs a recorded request again, compares every bit, and prints its schedule."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.options import chosen, engine_fields, with_options
from ferrum.cli.run import show_log
from ferrum.cli.tables import print_table
from ferrum.core.errors import RecordMismatch

if TYPE_CHECKING:
    from ferrum.client.model_client import ModelClient
    from ferrum.client.records.record import Record
    from ferrum.client.request_output import CompletionOutput, Logprobs

DIFFERENT: Final = 1
"""Exit code if anything differs from the record."""

REPLAY_FIELDS: Final = [field for field in engine_fields() if field.name not in ("host", "record_dir", "record_gib")]


@with_options(REPLAY_FIELDS, "Model and engine (default: as recorded)", {field.name: None for field in REPLAY_FIELDS})
def replay(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a reply, or the file of its record.")],
    record: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the records.")] = Path(),
    model: Annotated[
        str | None, typer.Option(help="Where the model is now (default: the recorded directory or name).")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Likeliest tokens to show at each position.")] = 3,
    **options: Any,
) -> None:
    """Run a recorded request again and compare all tokens and log-probabilities; exit with 1 for any difference."""
    from ferrum.client.records.record import read_record
    from ferrum.client.records.record_files import find_record

    show_log()
    path = Path(id) if os.path.isfile(id) else find_record(record, id)  # noqa: PTH113 - an id may be too long for a path
    recorded = read_record(path)
    typer.echo("\n".join(_header(recorded)))
    _print_schedule(recorded)
    try:
        same = _run_again(recorded, model, path.parent, top, chosen(REPLAY_FIELDS, options))
    except RecordMismatch as error:
        typer.echo(f"ferrum: {error}", err=True)
        raise typer.Exit(DIFFERENT) from None
    if not same:
        raise typer.Exit(DIFFERENT)


def _run_again(recorded: Record, model: str | None, digests: Path, top: int, options: dict[str, Any]) -> bool:
    """Load the model, run the request, print its tokens and differences; return whether all bits are the same.

    Args:
        recorded: the record.
        model: where the model is now, if given.
        digests: directory of the record, with cached digests of models.
        top: likeliest tokens to print.
        options: given options of the engine.

    Raises:
        RecordMismatch: the model or its numerics are not the recorded ones.
    """
    from ferrum.client.llm import LLM
    from ferrum.client.offline_batch import stream
    from ferrum.client.records.image_store import recorded_images
    from ferrum.client.records.recorder import RecordedEngine
    from ferrum.client.records.replayer import Replay, check_adapters, check_origin, check_room, engine_options
    from ferrum.sources.open_model import open_model

    origin = recorded.origin
    here = origin.directory is not None and Path(origin.directory).exists()
    name = model or (origin.directory if here and origin.directory else origin.model)
    wanted = engine_options(origin, options)
    source = open_model(name, models_dir=options.get("models_dir"), mmproj=wanted.get("mmproj"))
    check_origin(origin, replace(origin, digest=source.digest(digests)))  # fails before the model is loaded
    images = recorded_images(digests, recorded.images)
    with LLM(source.name, source=source, **wanted) as llm:
        assert llm.client.config is not None
        check_origin(origin, RecordedEngine(llm.client.config, source, digests).origin(llm.info))
        check_room(recorded, min(llm.info.max_sequence_length, llm.info.kv_capacity + 1))
        check_adapters(recorded, [each.facts.digest for each in llm.client.adapters])
        again = Replay(recorded, top, images)
        for delta in stream(llm.client.router, llm.client.tokenizer, again.request):
            again.push(delta)
        differences = again.differences()
        for choice in again.output().outputs:
            _print_tokens(choice, llm.client, top)
    typer.echo()
    for difference in differences:
        typer.echo(f"not the same bits: {difference}")
    if not differences:
        typer.echo(f"same bits: {_counted(recorded)}")
    return not differences


def _header(recorded: Record) -> list[str]:
    origin, request, params = recorded.origin, recorded.request, recorded.request.params
    when = datetime.fromtimestamp(recorded.time).astimezone().isoformat(" ", "seconds")
    sampling = "".join(
        f"; {item.name}={value}"
        for item in fields(params)
        if item.name != "seed" and (value := getattr(params, item.name)) != item.default
    )
    lines = [
        f"{recorded.id}, {when}",
        f"{origin.model}, weights {origin.weights}, keys and values {origin.kv_format}, {origin.numerics_id}",
        f"{len(request.prompt)} prompt tokens; seed {request.seed}{sampling}",
    ]
    if recorded.end is None:
        lines.append("the record has no end: the request was still running at the last write")
    else:
        ends = (f"{each.finish_reason} after {each.tokens}" for each in recorded.end.choices)
        lines.append(f"ended by {', '.join(ends)}; {recorded.end.cached_tokens} prompt tokens from the prefix cache")
    return lines


def _print_schedule(recorded: Record) -> None:
    """Print the steps of each choice: prompt chunks, cached tokens, drafts."""
    from ferrum.client.records.explain import passages

    rows = []
    for each in passages(recorded):
        steps = f"{each.first_step}" + (f"-{each.last_step}" if each.last_step > each.first_step else "")
        drafts = f"{each.accepted} of {each.drafted}" if each.drafted else ""
        counts = (str(count or "") for count in (each.found, drafts, each.sampled, each.most_rows))
        rows.append((steps, str(each.choice), str(each.work), str(each.start), str(each.tokens), *counts))
    typer.echo()
    print_table([("STEPS", "CHOICE", "WORK", "FROM", "TOKENS", "CACHED", "DRAFTS", "SAMPLED", "ROWS OF STEP"), *rows])


def _print_tokens(choice: CompletionOutput, client: ModelClient, top: int) -> None:
    """Print every token with its log-probability and the likeliest ones of its position."""
    rows = []
    for index, (token, position) in enumerate(zip(choice.token_ids, choice.logprobs or (), strict=True)):
        entry = position[token]
        row = (str(index), _shown(token, client), f"{entry.logprob:.6f}", str(entry.rank))
        rows.append((*row, _likeliest(position, client, top)))
    typer.echo()
    print_table([(f"CHOICE {choice.index}", "TOKEN", "LOGPROB", "RANK", "LIKELIEST" if top else ""), *rows])


def _likeliest(position: Logprobs, client: ModelClient, top: int) -> str:
    ranked = sorted(position.items(), key=lambda item: item[1].rank)[:top]
    return "  ".join(f"{_shown(token, client)} {each.logprob:.4f}" for token, each in ranked)


def _shown(token: int, client: ModelClient) -> str:
    return str(token) if client.tokenizer is None else f"{token} {client.tokenizer.token_text(token)!r}"


def _counted(recorded: Record) -> str:
    tokens = sum(len(recorded.sampled(choice)) for choice in recorded.request.choices)
    prompt = 0 if recorded.end is None else len(recorded.end.prompt_logprobs or ())
    vector = recorded.end is not None and recorded.end.embedding is not None
    parts = [f"{tokens} tokens and their log-probabilities"]
    parts += [f"{prompt} log-probabilities of the prompt"] if prompt else []
    parts += ["the vector"] if vector else []
    return ", ".join(parts)
