"""Sampling rules as the fields of a request describe them: which fields turn a rule on, and what a rule reads.

The descriptions are metadata of `SamplingParams` and `Sampling`. The rules themselves are in `sampling/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import Field, fields
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final

from ferrum.core.params import HISTORY, SamplingParams
from ferrum.core.step import Sampling

_ROOM: Final = "sampling."


def _described(record: type) -> list[Field[Any]]:
    """Return the fields of a record that some sampling rule applies."""
    return [each for each in fields(record) if each.metadata.get("rule", "").startswith(_ROOM)]


def switches(record: type, rules: Collection[str]) -> list[str]:
    """Return the fields of a record that turn some rules on, without the settings of those rules.

    Args:
        record: `SamplingParams` or `Sampling`.
        rules: names of functions in `sampling/rules.py`.
    """
    return [
        each.name
        for each in _described(record)
        if each.metadata["rule"].removeprefix(_ROOM) in rules and each.metadata.get("switch") is None
    ]


def _rules_reading(word: str) -> frozenset[str]:
    described = (*_described(SamplingParams), *_described(Sampling))
    return frozenset(each.metadata["rule"].removeprefix(_ROOM) for each in described if each.metadata["reads"] == word)


HISTORY_RULES: Final = _rules_reading(HISTORY)
"""Names of the rules that read the tokens before a row."""


class _Defaults:
    """A test whether fields of a record have their defaults."""

    def __init__(self, record: type, names: Sequence[str]) -> None:
        defaults = SimpleNamespace(**{each.name: each.default for each in fields(record)})
        self._values: Callable[[object], object] = attrgetter(*names) if names else type
        self._defaults = self._values(defaults) if names else record

    def __call__(self, record: object) -> bool:
        return bool(self._values(record) == self._defaults)


class Neutral:
    """A test whether some rules are off in a request: all fields that turn them on have their defaults.

    Args:
        rules: names of the rules.
    """

    def __init__(self, *rules: str) -> None:
        self._params = _Defaults(SamplingParams, switches(SamplingParams, rules))
        self._resolved = _Defaults(Sampling, switches(Sampling, rules))
        self._last: tuple[SamplingParams | None, bool] = (None, False)

    def of_params(self, params: SamplingParams) -> bool:
        """Return whether the rules are off as far as parameters turn them on."""
        last, answer = self._last  # a single sequence asks with the same object at every step
        if params is not last:
            answer = self._params(params)
            self._last = params, answer
        return answer

    def __call__(self, sampling: Sampling) -> bool:
        """Return whether the rules are off."""
        return self.of_params(sampling.params) and self._resolved(sampling)


_reads_nothing: Final = Neutral(*HISTORY_RULES)


def reads_history(sampling: Sampling) -> bool:
    """Return whether a rule of the request reads the tokens before a row, the newest included."""
    return not _reads_nothing(sampling)
