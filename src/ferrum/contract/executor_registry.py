"""`ExecutorRegistry`: executors by name."""

from __future__ import annotations

from ferrum.contract.executor import ModelExecutor
from ferrum.contract.executor_state import ExecutorMetrics
from ferrum.core.errors import ExecutorInUse, FerrumError, ModelNotFound
from ferrum.core.registry import Registry
from ferrum.core.span_checks import check_kind


class ExecutorRegistry:
    """The executors of a process, by name. It does not own them: after `remove` the caller shuts the executor down."""

    def __init__(self) -> None:
        self._executors: Registry[ModelExecutor] = Registry("executor", missing=_missing)

    def register(self, name: str, executor: ModelExecutor) -> None:
        """Add an executor.

        Raises:
            ConfigError: the name is taken.
            RequestError: `executor` is no `ModelExecutor`.
        """
        check_kind(executor, ModelExecutor, param="executor")
        self._executors.add(name, executor)

    def get(self, name: str) -> ModelExecutor:
        """Return the executor of that name. Raises ModelNotFound, which lists the known names."""
        return self._executors.get(name)

    def remove(self, name: str) -> ModelExecutor:
        """Remove and return an executor.

        Raises:
            ModelNotFound: the name is unknown.
            ExecutorInUse: an engine holds its lease, or a step is running.
        """
        if self.get(name).in_use:
            raise ExecutorInUse(f"the executor {name!r} is in use: shut its engine down first")
        return self._executors.pop(name)

    def list_names(self) -> list[str]:
        """Return all names, sorted."""
        return list(self._executors)

    def get_metrics(self, name: str) -> ExecutorMetrics:
        """Return the counts and speeds of one executor. Raises ModelNotFound."""
        return self.get(name).metrics()


def _missing(what: str, reason: str) -> FerrumError:
    return ModelNotFound(f"{what} is not registered: {reason}", param="name")
