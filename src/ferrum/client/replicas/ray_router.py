"""`PinnedRouter`: sends each call to the replica that it names, and reports which replicas Ray Serve runs.

Ray Serve makes one in each process that has a handle of the deployment. Which replica a request runs on is decided by
`ReplicaHost`, as for processes of one machine. It pickles this module by value, so its globals are modules and types
only: an instance would be copied, or could not be pickled.
"""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from ferrum.client.replicas import replica_watchers


class PinnedRouter(RequestRouter):  # type: ignore[misc] # Ray has no types
    """A router of calls that name their replica as the argument `replica`."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that may be called: those that are stopped are left out first."""
        super().update_replicas(replicas)
        running = frozenset(each.replica_id.unique_id for each in replicas)
        deployment = self._deployment_id
        replica_watchers.WATCHERS.report(deployment.app_name, deployment.name, running)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the named replica. One that is gone is replaced by any other, which refuses the call.

        A call without a place would block all calls behind it.
        """
        name = None if pending_request is None else pending_request.kwargs.get("replica")
        named = [each for each in candidate_replicas if each.replica_id.unique_id == name]
        return [named or candidate_replicas]
