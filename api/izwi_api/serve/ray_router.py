"""Request router of Ray Serve for engines: it lists them, and requests do not pass through it.

Ray gives each process that calls a deployment a router of its own, and tells it which replicas run.
"""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from izwi_api.serve import ray_directory
from izwi_api.serve.ray_members import Member


class EngineRouter(RequestRouter):
    """Tells the API server of this process which engines there are; its own router uses them."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,  # noqa: ARG002
    ) -> list[list[RunningReplica]]:
        """Return all replicas as one rank: only `EngineReplica.ping` is called through Ray."""
        return [candidate_replicas]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Follow the replicas that run."""
        super().update_replicas(replicas)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Follow a replica that has died."""
        super().on_replica_actor_died(replica_id)
        self._publish()

    def _publish(self) -> None:
        members = {
            name.unique_id: Member(address, bool(replica.routing_stats.get("is_hung")))
            for name, replica in self.curr_replicas.items()
            if (address := replica.replica_metadata.get("address"))
        }
        ray_directory.publish(self._deployment_id.name, members)
