"""`ferrum formats`: how a model writes reasoning and tool calls, and how that was found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferrum.cli.options import MODEL_HELP, chosen, engine_fields, with_options
from ferrum.cli.tables import print_table

if TYPE_CHECKING:
    from ferrum.core.output_format import Calls, OutputFormat
    from ferrum.formats.find import FoundFormat

FORMAT_FIELDS: Final = [field for field in engine_fields() if field.name in ("models_dir", "tokenizer", "tool_format")]
"""The options of a model that its output format depends on."""

_SOURCES: Final = {
    "response_template": "the tokenizer's response_template",
    "template": "the chat template, by analysis",
    "known": "the chat template, by its texts",
}
_EXAMPLE: Final = (
    ("get_weather", {"city": "Zürich", "days": 3}),
    ("get_time", {"zone": {"name": "CET", "offset": 1}}),
)


@with_options(FORMAT_FIELDS, "Model")
def formats(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    chat_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with a chat template that replaces the model's own.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the format as JSON, as --tool-format reads it.")
    ] = False,
    **options: Any,
) -> None:
    """Show how a model writes reasoning and tool calls, without reading its weights."""
    from ferrum.formats.find import prompt_reasoning

    values = chosen(FORMAT_FIELDS, options)
    found, template = _found(model, chat_template, values)
    if as_json:
        typer.echo(json.dumps(None if found.format is None else found.format.to_dict(), ensure_ascii=False, indent=2))
        if found.reason:
            typer.echo(f"No tools: {found.reason}", err=True)
        return
    rows = [("model", model)]
    if found.format is not None:
        where = "--tool-format" if "tool_format" in values else _SOURCES[found.format.source]
        rows += [("format", f"{found.format.name}, from {where}"), *_rows(found.format)]
        variables = () if template is None else prompt_reasoning(template)
        rows.append(("variables of reasoning", ", ".join(variables) or "none"))
    print_table(rows)
    if found.reason:
        step = "" if template is None else " Choose a format with --tool-format NAME or FILE."
        typer.echo(f"\nNo tools: {found.reason}.{step}")
    if found.format is not None:
        typer.echo(f"\nAn output in this format:\n\n{_example(found.format)}")


def _found(model: str, chat_template: str | None, values: dict[str, Any]) -> tuple[FoundFormat, Any]:
    """Return the format of a model, and its chat template."""
    from ferrum.formats.find import FoundFormat, chosen_format, find_format
    from ferrum.sources.other_tokenizer import text_source, with_tokenizer
    from ferrum.text.chat_template import ChatTemplate
    from ferrum.text.sandbox import template_of

    tool_format, models_dir = values.get("tool_format"), values.get("models_dir")
    if tool_format is not None:
        chosen_format(tool_format)  # fails before a download
    source = text_source(model, models_dir)
    if values.get("tokenizer") is not None:
        source = with_tokenizer(source, values["tokenizer"], models_dir)
    template = source.chat_template()
    if chat_template is not None:
        template = ChatTemplate(template_of(chat_template), source.special_tokens(), origin=chat_template)
    if template is None:
        return FoundFormat(None, "the model has no chat template"), None
    return find_format(template, source if chat_template is None else None, tool_format), template


def _rows(format: OutputFormat) -> list[tuple[str, str]]:
    reasoning, calls = format.reasoning, format.calls
    rows = [("reasoning", "none" if reasoning is None else f"{reasoning.open!r} to {reasoning.close!r}")]
    if format.content_open:
        rows.append(("content", f"{format.content_open!r} to {format.content_close!r}"))
    return rows if calls is None else rows + _call_rows(calls)


def _call_rows(calls: Calls) -> list[tuple[str, str]]:
    many = "several in a message" if calls.parallel else "one in a message"
    rows = [("calls", f"{calls.style} with arguments as {calls.arguments.style}, {many}")]
    if calls.section_open or calls.section_close:
        rows.append(("all calls", f"{calls.section_open!r} to {calls.section_close!r}"))
    rows.append(("a call", f"{calls.open!r} to {calls.close!r}"))
    if calls.aliases:
        rows.append(("also begun by", ", ".join(map(repr, calls.aliases))))
    return rows


def _example(format: OutputFormat) -> str:
    from ferrum.formats.writing import write_output

    many = format.calls is not None and format.calls.parallel
    calls = () if format.calls is None else _EXAMPLE if many else _EXAMPLE[:1]
    reasoning = None if format.reasoning is None else "The user wants the weather."
    return write_output(format, reasoning, None if calls else "It rains.", calls)
