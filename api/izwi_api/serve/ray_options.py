"""What `izwi ray deploy` serves: a file in YAML or TOML. Knows nothing of Ray."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from izwi.config import EngineConfig, require_one_of
from izwi.errors import InvalidRequest
from izwi.router.options import RouterOptions
from izwi.router.policy import ROUTER_POLICIES
from izwi.router.scaling import ScalingRules
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.exposure import allowed_hosts, check_exposure
from izwi_api.settings import DEFAULT_MODELS, Access

_MIB = 1 << 20
# Places of engines for each that may run: new ones start while old ones are drained.
_PLACES_FOR_EACH = 2


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An application of Ray Serve.

    Attributes:
        models: Checkpoints, as for `izwi serve --model`; every node needs or fetches them.
        name: Name of the application.
        route_prefix: Path under which it is served.
        host: Address on which each node's proxy listens, if Ray Serve does not run yet.
        port: Its port.
        insecure: Serve without a key where others may reach the proxy.
        engines: Engines; the fewest, with `max_engines`.
        max_engines: Engines at most, of which as many run as the load needs; 0: always `engines`.
        streams_each: Requests that one engine is meant to have, with `max_engines`.
        least_slack_ms: Slack below which an engine is behind, with `max_engines`.
        first_audio_ms: The 95th percentile of first audio above which there are too few engines;
            0: it does not count. Needs `prometheus`.
        prometheus: Base URL of a Prometheus that scrapes the API servers.
        upscale_delay_s: Seconds for which more engines must be needed before they are started.
        downscale_delay_s: Seconds for which fewer must be needed before one is drained.
        engine_gpus: GPUs of one engine; 0: it runs on CPUs.
        engine_cpus: CPUs that are reserved for one engine.
        router: How API servers place requests on engines.
        max_in_flight: Requests of one API server that all engines may have; 0: no limit.
        api_servers: API servers.
        api_server_cpus: CPUs that are reserved for one.
        drain_s: Seconds that requests have to end before a process that leaves is killed.
        hung_after_s: Seconds without a sign of life after which an engine is replaced.
    """

    models: tuple[str, ...] = DEFAULT_MODELS
    name: str = "izwi"
    route_prefix: str = "/"
    host: str = "127.0.0.1"
    port: int = 8000
    insecure: bool = False
    engines: int = 1
    max_engines: int = 0
    streams_each: int = 32
    least_slack_ms: float = 300.0
    first_audio_ms: float = 0.0
    prometheus: str = ""
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 300.0
    engine_gpus: float = 1.0
    engine_cpus: float = 1.0
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"
    attention: str = "auto"
    offline: bool = False
    policy: str = "deadline"
    device_mib: int = 0
    kv_mib: int = 0
    router: str = "prefix"
    max_in_flight: int = 0
    api_servers: int = 1
    api_server_cpus: float = 1.0
    drain_s: float = 60.0
    hung_after_s: float = 300.0

    def __post_init__(self) -> None:
        if self.engines < 1:
            raise InvalidRequest("engines must be at least 1", param="engines")
        if self.api_servers < 1:
            raise InvalidRequest("api_servers must be at least 1", param="api_servers")
        if self.max_engines and self.max_engines < self.engines:
            raise InvalidRequest("max_engines must be 0 or at least engines", param="max_engines")
        if self.first_audio_ms and not self.prometheus:
            raise InvalidRequest("first_audio_ms needs prometheus", param="first_audio_ms")
        for name in ("upscale_delay_s", "downscale_delay_s"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} must be at least 0", param=name)
        require_one_of("router", self.router, tuple(ROUTER_POLICIES))
        # refuse wrong ones early
        _ = self.runtime, self.engine_config, self.router_options, self.scaling_rules

    @property
    def num_places(self) -> int:
        """Engines that an API server may know at a time."""
        return _PLACES_FOR_EACH * max(self.engines, self.max_engines) + 1

    @property
    def is_autoscaled(self) -> bool:
        """Whether the number of engines follows the load."""
        return self.max_engines > self.engines

    @property
    def scaling_rules(self) -> ScalingRules:
        """When there are too few engines, and when too many."""
        slack_s, first_s = self.least_slack_ms / 1e3, self.first_audio_ms / 1e3
        return ScalingRules(self.streams_each, slack_s, first_s)

    @property
    def runtime(self) -> RuntimeOptions:
        """Device and kernels of each engine."""
        return RuntimeOptions(self.device, self.dtype, self.offline, self.weights, self.attention)

    @property
    def engine_config(self) -> EngineConfig:
        """Budgets of each engine."""
        return EngineConfig(
            policy=self.policy,
            device_bytes=self.device_mib * _MIB,
            kv_bytes=self.kv_mib * _MIB,
        )

    @property
    def router_options(self) -> RouterOptions:
        """How each API server places requests on engines."""
        return RouterOptions(self.router, self.engine_config.page_size, self.max_in_flight)


def parse_options(values: Any) -> RayOptions:
    """Read options from plain values. Raises InvalidRequest."""
    try:
        return msgspec.convert(values, RayOptions)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def cluster_access(options: RayOptions, access: Access, *, is_own_cluster: bool) -> Access:
    """Return who may use the API servers of an application.

    Args:
        options: The application.
        access: As the environment says.
        is_own_cluster: This process starts the cluster, so that its proxy listens on
            `options.host`. Elsewhere whoever started Ray Serve has chosen the address.

    Raises:
        InvalidRequest: No key is required, and others reach the proxy, or may reach it.
    """
    if is_own_cluster:
        check_exposure(options.host, access, insecure=options.insecure)
        return replace(access, allowed_hosts=allowed_hosts(options.host, access))
    if not (access.requires_key or options.insecure):
        raise InvalidRequest(
            "refusing to serve from a cluster, whose proxies others may reach, without a key: set "
            "IZWI_API_KEY or IZWI_API_KEYS, or insecure: true",
            param="insecure",
        )
    return access


def read_options(path: Path) -> RayOptions:
    """Read a file in TOML (`.toml`), or in YAML.

    Raises:
        InvalidRequest: It cannot be read, or has a wrong value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from None
    if path.suffix == ".toml":
        try:
            return parse_options(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidRequest(f"{path}: {error}") from None
    import yaml  # Ray brings it

    try:
        return parse_options(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{path}: {error}") from None
