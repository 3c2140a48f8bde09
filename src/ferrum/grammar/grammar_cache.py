"""`SourceCache`: the grammars of constraints that were checked before, so that equal ones cost nothing."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from ferrum.core.errors import RequestError
from ferrum.core.structured_outputs import StructuredOutputs

DEFAULT_BYTES: Final = 16 * 1024 * 1024
_OVERHEAD: Final = 1024
"""Bytes of an entry besides its texts, roughly."""


class SourceCache:
    """Grammars, or the errors of constraints that have none, the most recently used ones. Threads may share it.

    Args:
        limit: bytes of all entries together.
    """

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[StructuredOutputs, str | RequestError] = OrderedDict()
        self._lock = Lock()
        self._compiling = Lock()

    def source(self, outputs: StructuredOutputs) -> str:
        """Return the grammar of a constraint. At most one thread compiles.

        Raises:
            RequestError: as `checked_source`.
        """
        found = self._find(outputs)
        if found is None:
            with self._compiling:
                found = self._find(outputs)  # another thread may have compiled it meanwhile
                if found is None:
                    found = _compiled(outputs)
                    self._keep(outputs, found)
        if isinstance(found, RequestError):
            raise type(found)(found.message, param=found.param)  # an instance would gather tracebacks
        return found

    def _find(self, outputs: StructuredOutputs) -> str | RequestError | None:
        with self._lock:
            found = self._entries.get(outputs)
            if found is not None:
                self._entries.move_to_end(outputs)
            return found

    def _keep(self, outputs: StructuredOutputs, found: str | RequestError) -> None:
        with self._lock:
            self._entries[outputs] = found
            self._size += _bytes(outputs, found)
            while self._size > self._limit:
                self._size -= _bytes(*self._entries.popitem(last=False))


def _compiled(outputs: StructuredOutputs) -> str | RequestError:
    from ferrum.grammar.constraint_grammars import checked_source  # few programs constrain outputs

    try:
        return checked_source(outputs)
    except RequestError as error:
        return type(error)(error.message, param=error.param)


def _bytes(outputs: StructuredOutputs, found: str | RequestError) -> int:
    """Return about how many bytes an entry takes; a character takes up to four."""
    texts = (outputs.json, outputs.regex, outputs.grammar, outputs.structural_tag, *(outputs.choice or ()))
    source = found if isinstance(found, str) else found.message
    return _OVERHEAD + 4 * (len(source) + sum(len(text) for text in texts if text is not None))
