"""izwi as an application of Ray Serve: engines and API servers on the machines of a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from izwi.checkpoints.registry import Registry, named
from izwi_api.environment import read_access, read_settings
from izwi_api.http.app_state import AppState
from izwi_api.serve import ray_directory
from izwi_api.serve.app import create_app
from izwi_api.serve.ray_engine import EngineReplica
from izwi_api.serve.ray_members import Member, Members
from izwi_api.serve.ray_options import RayOptions, cluster_access, parse_options
from izwi_api.serve.redaction import redact_records
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.replica_router import ReplicaRouter
from izwi_api.serve.wire import RequestCodec
from izwi_api.services.chat.answer import start_ahead
from izwi_api.settings import Settings, upload_pieces

ENGINE, API_SERVER = "Engine", "ApiServer"
# A replica of a deployment has no queue of its own to fill: the engine's and the app's limits hold.
_MOST_ONGOING = 10_000
_STATS_EVERY_S, _HEALTH_EVERY_S = 1.0, 2.0
# Seconds over which figures are averaged before they change the number of engines.
_LOOK_BACK_S = 5.0


class ApiServer:
    """HTTP and WebSocket, without torch; reaches all engines itself, without Ray in between.

    Args:
        options: The application.
        settings: Of API servers.
        engines: Handle of the engines' deployment.
    """

    async def __init__(  # type: ignore[misc]
        self, options: RayOptions, settings: Settings, engines: Any
    ):
        self._options, self._settings, self._engines = options, settings, engines

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Build the app when the replica starts; called by Ray on the replica's event loop."""
        options, loop = self._options, asyncio.get_running_loop()
        place = f"tcp://{ray.util.get_node_ip_address()}"
        name, codec = ray.get_runtime_context().get_actor_id(), RequestCodec()
        patience_s = self._settings.resume_within_s
        clients = [
            RemoteEngine(name, place, codec, patience_s=patience_s, replica=number)
            for number in range(options.num_places)
        ]
        router = ReplicaRouter(clients, options.router_options)
        members = Members(router, options.num_places)

        def follow(listed: Mapping[str, Member]) -> None:
            loop.call_soon_threadsafe(members.update, listed)

        ray_directory.subscribe(ENGINE, follow)
        self._first = self._engines.ping.remote()  # Ray makes the router with the first call
        registry = Registry()
        for source in options.models:
            model, folder = named(source, offline=options.offline)
            registry.load(str(folder), model)
        redact_records()
        app = create_app(router, registry, self._settings)
        state: AppState = app.state.izwi
        state.services.decoder.start()
        start_ahead(registry)
        return app


def build(values: dict[str, Any]) -> Any:
    """Build the application from the fields of `RayOptions`, for a file of Ray Serve.

    Raises:
        InvalidRequest: A value is wrong, or no key is required. Whoever starts Ray Serve chooses
            the proxy's address, so that `host` says nothing here.
    """
    return build_app(parse_options(values), is_own_cluster=False)


def build_app(options: RayOptions, *, is_own_cluster: bool) -> Any:
    """Build the application, with settings of this process's environment. Raises InvalidRequest."""
    access = cluster_access(options, read_access(os.environ), is_own_cluster=is_own_cluster)
    pieces = upload_pieces(options.engine_config.max_waiting, options.api_servers)
    settings = replace(
        read_settings(os.environ),
        access=access,
        offline=options.offline,
        max_upload_pieces=pieces,
    )
    return _api_servers(options).bind(options, settings, _engines(options).bind(options))


def _engines(options: RayOptions) -> Any:
    return serve.deployment(
        EngineReplica,
        name=ENGINE,
        **_number_of_engines(options),
        max_ongoing_requests=_MOST_ONGOING,
        ray_actor_options={"num_gpus": options.engine_gpus, "num_cpus": options.engine_cpus},
        health_check_period_s=_HEALTH_EVERY_S,
        graceful_shutdown_timeout_s=options.drain_s,
        request_router_config=RequestRouterConfig(
            request_router_class="izwi_api.serve.ray_router:EngineRouter",
            request_routing_stats_period_s=_STATS_EVERY_S,
        ),
    )


def _number_of_engines(options: RayOptions) -> dict[str, Any]:
    """Return how many engines Ray runs: always the same, or as many as they need."""
    if not options.is_autoscaled:
        return {"num_replicas": options.engines}
    rules = options.scaling_rules
    policy = AutoscalingPolicy(
        policy_function="izwi_api.serve.ray_scaling:EngineScaling",
        policy_kwargs={**asdict(rules), "prometheus": options.prometheus},
    )
    scaling = AutoscalingConfig(
        min_replicas=options.engines,
        max_replicas=options.max_engines,
        upscale_delay_s=options.upscale_delay_s,
        downscale_delay_s=options.downscale_delay_s,
        metrics_interval_s=_STATS_EVERY_S,
        look_back_period_s=_LOOK_BACK_S,
        policy=policy,
    )
    return {"autoscaling_config": scaling}


def _api_servers(options: RayOptions) -> Any:
    return serve.deployment(
        serve.ingress()(ApiServer),
        name=API_SERVER,
        num_replicas=options.api_servers,
        max_ongoing_requests=_MOST_ONGOING,
        ray_actor_options={"num_cpus": options.api_server_cpus},
        graceful_shutdown_timeout_s=options.drain_s,
        # requests with the same `x-session-id` go to one API server, which stores their answers
        request_router_config=RequestRouterConfig(
            request_router_class="ray.serve.experimental.consistent_hash_router"
            ":ConsistentHashRouter"
        ),
    )


def deploy(options: RayOptions, *, is_own_cluster: bool) -> None:
    """Deploy the application to the cluster that this process is connected to.

    Args:
        options: The application.
        is_own_cluster: This process has started it; serve until a signal.

    Raises:
        InvalidRequest: A setting is wrong, or anybody may use the server.
    """
    app = build_app(options, is_own_cluster=is_own_cluster)
    serve.start(http_options={"host": options.host, "port": options.port})
    serve.run(app, name=options.name, route_prefix=options.route_prefix, blocking=is_own_cluster)
