"""`izwi serve`: the HTTP server."""

from __future__ import annotations

import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from izwi.config import EngineConfig
from izwi.errors import InvalidRequest
from izwi_api.cli.options import Device, Dtype, Offline, failures_told, tell_failure
from izwi_api.keys import KeyRing
from izwi_api.reference_hosts import OPTION, parse_host
from izwi_api.serve.plan import Plan, StartFailed
from izwi_api.serve.process_log import log_as_the_server
from izwi_api.settings import (
    DEFAULT_MODELS,
    Access,
    check_origin,
    key_digest,
    read_access,
    read_settings,
)
from izwi_api.where import Where

PolicyOption = Annotated[str, typer.Option(help="Who runs first: deadline, priority or fcfs.")]
ShadowPolicyOption = Annotated[
    str | None, typer.Option(help="Plan by this one too, count what differs, run none of it.")
]
KvMibOption = Annotated[
    int, typer.Option(min=0, help="Memory for keys and values; 0: most of what is free.")
]
HostMibOption = Annotated[
    int, typer.Option(min=0, help="Host memory for what had to leave the device.")
]
DiskMibOption = Annotated[
    int, typer.Option(min=0, help="Disk for what had to leave the host memory.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(help="Ask everybody for this key; others see it in `ps`: better IZWI_API_KEY."),
]
ApiKeysOption = Annotated[
    Path | None, typer.Option(help="Ask for a key of this file; `izwi keys add` makes them.")
]
CorsOriginOption = Annotated[
    list[str] | None,
    typer.Option(help="Let web pages of this origin call, like https://a.example; again for more."),
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Listen at a public address without asking for a key.")
]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option(help="Answer to this name too, as a proxy on this machine may call it; again."),
]
DrainOption = Annotated[
    float, typer.Option(min=0, help="Seconds that what runs may go on for after SIGTERM.")
]
WeightsOption = Annotated[
    str, typer.Option(help="auto, or the decoders' weights in fewer bits: int8, fp8 or int4.")
]
AttentionOption = Annotated[
    str, typer.Option(help="What decoders attend with: auto, torch or triton.")
]
RequireConsentOption = Annotated[
    bool,
    typer.Option(
        "--require-consent",
        envvar="IZWI_REQUIRE_CONSENT",
        help="Clone only with the id of a recording in which the speaker consents.",
    ),
]
RecordTraceOption = Annotated[
    Path | None,
    typer.Option(help="Append what is asked and what it gives, for `izwi replay`; private."),
]
ReferenceHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="Fetch a ref_audio that is an https address there (http://HOST:PORT for plain http). "
        "An address inside must be listed as itself. Again for more. Default: fetch nothing.",
    ),
]
ManageModelsOption = Annotated[
    bool,
    typer.Option(
        "--manage-models",
        envvar="IZWI_MANAGE_MODELS",
        help="Let callers load, unload and pull models.",
    ),
]
MaxModelsOption = Annotated[
    int, typer.Option(min=1, help="With --manage-models: so many models share the memory.")
]
AuditLogOption = Annotated[
    Path | None, typer.Option(help="Append a JSON line about each call; never what was said.")
]
DoorsOption = Annotated[
    int,
    typer.Option(
        min=0, max=64, help="Processes for HTTP, beside that of the models; 0: one for all."
    ),
]
InProcessOption = Annotated[
    bool,
    typer.Option("--in-process", help="As --doors 0. So it always is with --manage-models."),
]


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Folder, hub id or embedded name; again for more. Default: embedded."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen at.")] = 8000,
    record_trace: RecordTraceOption = None,
    policy: PolicyOption = "deadline",
    shadow_policy: ShadowPolicyOption = None,
    kv_mib: KvMibOption = 0,
    kv_dtype: Annotated[str, typer.Option(help="auto, or 8 bits: int8 or fp8.")] = "auto",
    weights: WeightsOption = "auto",
    attention: AttentionOption = "auto",
    host_mib: HostMibOption = 256,
    disk_mib: DiskMibOption = 0,
    api_key: ApiKeyOption = None,
    api_keys: ApiKeysOption = None,
    cors_origin: CorsOriginOption = None,
    insecure: InsecureOption = False,
    audit_log: AuditLogOption = None,
    require_consent: RequireConsentOption = False,
    allowed_host: AllowedHostOption = None,
    reference_host: ReferenceHostOption = None,
    manage_models: ManageModelsOption = False,
    max_models: MaxModelsOption = 4,
    drain_s: DrainOption = 30.0,
    doors: DoorsOption = 1,
    in_process: InProcessOption = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Serve speech and transcription over HTTP, as OpenAI's clients expect it."""
    log_as_the_server()
    with failures_told():
        access = _access(api_key, api_keys, cors_origin, audit_log)
        check_exposure(host, access, insecure=insecure)
        access = replace(access, allowed_hosts=_allowed_hosts(host, access, allowed_host))
        hosts = tuple(parse_host(entry, OPTION) for entry in reference_host or ())
        config = EngineConfig(
            policy=policy,
            shadow_policy=shadow_policy,
            kv_bytes=kv_mib << 20,
            kv_dtype=kv_dtype,
            host_bytes=host_mib << 20,
            disk_bytes=disk_mib << 20,
            max_models=max_models if manage_models else 1,
        )
        settings = read_settings(os.environ)
        settings = replace(settings, access=access, require_consent=require_consent)
        settings = replace(settings, reference_hosts=hosts or settings.reference_hosts)
        settings = replace(settings, manage_models=manage_models, offline=offline)
        where = Where(device, dtype, offline, weights, attention)
        models = tuple(model or DEFAULT_MODELS)
        plan = Plan(models, where, config, settings, drain_s, doors, record_trace)
        if in_process or not _can_part(plan):
            plan = replace(plan, num_doors=0)
        _run(plan, host, port)


def _can_part(plan: Plan) -> bool:
    """Whether doors and engine can be processes of their own."""
    return not plan.settings.manage_models and os.name == "posix"


def _run(plan: Plan, host: str, port: int) -> None:
    """Serve, in as many processes as the plan has."""
    if not plan.num_doors:
        from izwi_api.serve.in_process import serve_in_process

        code = serve_in_process(plan, host, port)
    else:
        from izwi_api.serve.supervisor import serve_in_processes

        try:
            code = serve_in_processes(plan, host, port)
        except StartFailed as failed:
            tell_failure(failed)
            code = failed.code
    if code:
        raise typer.Exit(code)


def check_exposure(host: str, access: Access, *, insecure: bool) -> None:
    """Refuse to work for whoever can reach an address.

    Raises:
        InvalidRequest: Others than this machine can, nobody asks for a key, and nobody said that
            this is meant.
    """
    if access.asks_for_key or insecure or _is_loopback(host):
        return
    raise InvalidRequest(
        f"refusing to listen at {host or 'all addresses'} without a key: give --api-key or "
        "--api-keys, or say --insecure",
        param="host",
    )


def _access(
    api_key: str | None,
    api_keys: Path | None,
    cors_origin: list[str] | None,
    audit_log: Path | None,
) -> Access:
    """What the environment says of access, where the command line does not say otherwise."""
    access = read_access(os.environ)
    if api_key is not None:
        access = replace(access, api_key_digest=key_digest(api_key, "--api-key"))
    if cors_origin:
        origins = tuple(check_origin(origin, "--cors-origin") for origin in cors_origin)
        access = replace(access, cors_origins=origins)
    access = replace(
        access,
        api_keys_file=api_keys or access.api_keys_file,
        audit_log=audit_log or access.audit_log,
    )
    KeyRing(access.api_keys_file)  # a broken file is told now, not after the models have loaded
    return access


def _allowed_hosts(host: str, access: Access, allowed: list[str] | None) -> tuple[str, ...] | None:
    """Names to answer to, None for every name.

    Where only this machine can call, and without a key, another name comes from a stranger's page.
    """
    names = tuple(allowed or ()) + (access.allowed_hosts or ())
    if names or (_is_loopback(host) and not access.asks_for_key):
        return names
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
