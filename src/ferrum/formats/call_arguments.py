"""Read the form of arguments after a name off renderings: JSON, tagged values, or keywords of Python."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from ferrum.core.output_format import Arguments, ArgumentStyle, ValueStyle
from ferrum.formats.cuts import shared_prefix
from ferrum.formats.probe_conversations import KEYS, NUMBER, TEXTS
from ferrum.formats.renderings import NotFoundError

SEPARATORS = ((", ", ": "), (",", ":"), (", ", ":"), (",", ": "))
"""Spellings of JSON that are tried: of items and keys."""


def json_arguments(text: str, value: object) -> Arguments | None:
    """Return the separators with which a JSON text of a value is written, or None for another spelling."""
    for items, keys in SEPARATORS:
        for ascii_only in (False, True):
            if json.dumps(value, ensure_ascii=ascii_only, separators=(items, keys)) == text:
                return Arguments(item_separator=items, key_separator=keys)
    return None


def tagged(empty: str, full: str) -> tuple[str, Arguments, str]:
    """Return what follows the name, the form of the arguments, and what follows the last one.

    Args:
        empty: the text after the name of a call without arguments.
        full: that of a call with texts of the probes under three keys.
    """
    places = []
    start = 0
    for word in (part for pair in zip(KEYS, TEXTS, strict=True) for part in pair):
        place = full.find(word, start)
        if place < 0 or full.count(word) != 1:
            raise NotFoundError("the chat template writes arguments in a form that is not known")
        places.append((place, place + len(word)))
        start = place + len(word)
    first, key_to_value, ends = full[: places[0][0]], full[places[0][1] : places[1][0]], full[places[-1][1] :]
    turn = full[places[1][1] : places[2][0]]
    if any(
        full[places[n][1] : places[n + 1][0]] != text for n, text in ((2, key_to_value), (3, turn), (4, key_to_value))
    ):
        raise NotFoundError("the chat template writes arguments in different ways")
    after_name = shared_prefix(first, empty)
    key_open, close = first[len(after_name) :], empty[len(after_name) :]
    if not ends.endswith(close) or not turn.endswith(key_open):
        raise NotFoundError("the chat template writes calls without arguments in another way")
    value_close = ends[: len(ends) - len(close)]
    middle = turn[: len(turn) - len(key_open)]
    if not middle.startswith(value_close):
        value_close = shared_prefix(value_close, middle)
        close = ends[len(value_close) :]
    quoted = key_to_value.endswith('"') and value_close.startswith('"')
    if quoted:
        key_to_value, value_close = key_to_value[:-1], value_close[1:]
        middle = middle[1:]
    between = middle[len(value_close) :]
    if between and not between.strip() and close.startswith(between):  # every argument ends so, if there are any
        value_close, between, close = value_close + between, "", close.removeprefix(between)
    if not key_open or not value_close:
        raise NotFoundError("the chat template writes arguments without markers")
    found = Arguments(
        style=ArgumentStyle.TAGGED,
        key_open=key_open,
        key_close=key_to_value,
        value_close=value_close,
        between=between,
        empty=empty[len(after_name) : len(empty) - len(close)],
        values=ValueStyle.JSON if quoted else ValueStyle.RAW,
    )
    return after_name, _split_keys(found), close


def _split_keys(arguments: Arguments) -> Arguments:
    """Divide the text between key and value at the begin of the value's own tag, if there is one."""
    text = arguments.key_close
    place = text.find("<", 1)
    if place < 0:
        return arguments
    return replace(arguments, key_close=text[:place], value_open=text[place:])


def marked(arguments: Arguments, typed: str) -> Arguments:
    """Return the arguments with the words that say whether a value is a string, if there are any.

    Args:
        arguments: as strings are written.
        typed: the text after the name of a call whose first value is `NUMBER`, under the key `whole`.
    """
    place = typed.find(arguments.key_open + "whole") + len(arguments.key_open + "whole")
    end = typed.find(str(NUMBER), place)
    as_string, as_number = arguments.key_close + arguments.value_open, typed[place:end]
    if end < 0 or as_string == as_number:
        return arguments
    words = [list(re.finditer(r"\w+", text)) for text in (as_string, as_number)]
    for string, number in zip(*words, strict=False):
        if string[0] != number[0]:
            key_close, value_open = as_string[: string.start()], as_string[string.end() :]
            if as_number == key_close + number[0] + value_open:
                return replace(
                    arguments, key_close=key_close, string_mark=string[0], other_mark=number[0], value_open=value_open
                )
    return arguments
