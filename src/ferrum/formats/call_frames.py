"""Read the markers around calls off renderings with one and two calls."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.formats.cuts import shared_prefix, shared_suffix


@dataclass(frozen=True, slots=True)
class Gaps:
    """The texts around and between the calls of a message.

    Attributes:
        before: from the end of the content to the first call.
        between: from one call to the next; None if the template writes one call only.
        after: from the last call to the end.
        end: what follows a message without calls.
    """

    before: str
    between: str | None
    after: str
    end: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The markers of `Calls` with the same names, and what follows the last one."""

    section_open: str
    open: str
    close: str
    between: str
    section_close: str
    rest: str


def frame(gaps: Gaps) -> Frame:
    """Return the markers that the gaps consist of.

    The texts before the first and between two calls end with the `open` of a call; those between two and after the last
    begin with its `close`. White space between them belongs to the section and to `between`.
    """
    before = gaps.before.lstrip()
    if gaps.between is None:
        end = shared_suffix(gaps.after, gaps.end)
        return Frame("", before, gaps.after[: len(gaps.after) - len(end)].rstrip(), "", "", end)
    open_ = shared_suffix(before, gaps.between).lstrip()
    close = shared_prefix(gaps.between, gaps.after).rstrip()
    if len(open_) + len(close) > len(gaps.between):  # both would take the same text: it ends a call
        open_ = open_[len(open_) + len(close) - len(gaps.between) :]
    between = gaps.between[len(close) : len(gaps.between) - len(open_)]
    section_open = before[: len(before) - len(open_)]
    after = gaps.after[len(close) :]
    if not section_open:
        return Frame("", open_, close, between, "", after)
    end = shared_suffix(after, gaps.end)
    section_close = after[: len(after) - len(end)]
    trimmed = section_close.rstrip()
    end = section_close[len(trimmed) :] + end
    if between and not between.strip() and trimmed.startswith(between):  # every call ends so
        close, between, trimmed = close + between, "", trimmed.removeprefix(between)
    return Frame(section_open, open_, close, between, trimmed, end)
