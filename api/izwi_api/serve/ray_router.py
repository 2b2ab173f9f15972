"""Request routers of Ray Serve: izwi's policies for API servers, and the list of engines.

Ray gives each process that calls a deployment a router of its own, and tells it which replicas run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

from izwi.router.policy import ROUTER_POLICIES, Arrival, Candidate
from izwi_api.serve import ray_directory
from izwi_api.serve.ray_members import Member


class PolicyRouter(ConsistentHashRouter):
    """Chooses the replica of a deployment by a policy of `izwi.router.policy`.

    Requests with a session id (header `x-session-id`) go where the session is, by Ray's consistent
    hashing. API servers have no prefixes, so that `prefix` is `least_load` for them.
    """

    def initialize_state(self, policy: str = "least_load", **kwargs: Any) -> None:
        """Set the policy's name, and what `ConsistentHashRouter` takes."""
        super().initialize_state(**kwargs)
        self._policy = ROUTER_POLICIES[policy]
        self._num_placed = 0

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return replicas by rank, each rank with one; Ray tries the next if one is full."""
        if pending_request is None or pending_request.metadata.session_id:
            ranks: list[list[RunningReplica]] = await super().choose_replicas(
                candidate_replicas, pending_request
            )
            return ranks
        pending_request.routing_context.should_backoff = True
        ranked = self.rank(candidate_replicas)
        self._num_placed += 1
        return [[replica] for replica in ranked]

    def rank(self, replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
        """Return replicas, the one that the policy chooses first."""
        ordered = sorted(replicas, key=lambda one: one.replica_id.unique_id)
        if not ordered:
            return []
        arrival = Arrival(self._num_placed, random.random())
        candidates = [self._candidate(number, one) for number, one in enumerate(ordered)]
        first = self._policy(candidates, arrival).replica
        others = sorted(candidates, key=lambda one: (one.num_in_flight, one.replica))
        return [ordered[first], *(ordered[one.replica] for one in others if one.replica != first)]

    def _candidate(self, number: int, replica: RunningReplica) -> Candidate:
        num_in_flight = self.replica_queue_len_cache.get(replica.replica_id) or 0
        has_room = num_in_flight < replica.max_ongoing_requests
        return Candidate(number, num_in_flight, float(num_in_flight), has_room=has_room)


class EngineRouter(PolicyRouter):
    """Tells the API server of this process which engines there are; their own router uses them."""

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
