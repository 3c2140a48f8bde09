"""`ExecutorRegistry`: executors by name."""

from __future__ import annotations

from ferrum.contract.executor_protocols import VERBS, AnyExecutor
from ferrum.contract.executor_state import ExecutorMetrics, ExecutorState
from ferrum.core.errors import ExecutorInUse, FerrumError, ModelNotFound, RequestError
from ferrum.core.registry import Registry
from ferrum.core.values import shown


class ExecutorRegistry:
    """The executors of a process, by name. It does not own them: after `remove` the caller shuts the executor down."""

    def __init__(self) -> None:
        self._executors: Registry[AnyExecutor] = Registry("executor", missing=_missing)

    def register(self, name: str, executor: AnyExecutor) -> None:
        """Add an executor.

        Raises:
            ConfigError: the name is taken.
            RequestError: `executor` lacks verbs; the message names them.
        """
        missing = [verb for verb in VERBS if isinstance(executor, type) or not hasattr(executor, verb)]
        if missing:
            reason = f"must have the verbs of an executor: {shown(executor)} lacks {', '.join(missing)}"
            raise RequestError(f"{reason} (inherit AnyExecutor for defaults)", param="executor")
        self._executors.add(name, executor)

    def get(self, name: str) -> AnyExecutor:
        """Return the executor of that name. Raises ModelNotFound, which lists the known names."""
        return self._executors.get(name)

    def remove(self, name: str) -> AnyExecutor:
        """Remove and return an executor.

        Raises:
            ModelNotFound: the name is unknown.
            ExecutorInUse: an engine holds its lease, or a step is running.
        """
        executor = self.get(name)
        if getattr(executor, "in_use", executor.status().state is ExecutorState.BUSY):
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
