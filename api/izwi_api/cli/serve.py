"""`izwi serve`: the HTTP server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from izwi.config import EngineConfig, require_one_of
from izwi.errors import InvalidRequest, StartFailed
from izwi.router.options import RouterOptions
from izwi.router.policy import ROUTER_POLICIES
from izwi_api.cli.options import (
    Device,
    DeviceMibOption,
    Dtype,
    KvDtypeOption,
    Offline,
    WeightsOption,
)
from izwi_api.console import report_failures, tell_failure
from izwi_api.environment import log_levels, read_access, read_log, read_settings
from izwi_api.http.tls_files import read_tls_files
from izwi_api.runtime_options import RUNNERS, RuntimeOptions
from izwi_api.serve.exposure import allowed_hosts, check_exposure
from izwi_api.serve.options import ReplicaOptions, ServeOptions
from izwi_api.services.models.adapter_option import parse_adapters
from izwi_api.services.models.alias_option import parse_aliases
from izwi_api.settings import (
    APIS,
    DEFAULT_MODELS,
    Access,
    Degradation,
    ImageModel,
    Settings,
    api_names,
    check_lead_ms,
    check_origin,
    check_vad,
    key_digest,
    read_image_model,
    vad_name,
)
from izwi_api.usage.keys import KeyRing
from izwi_api.voices.reference_hosts import OPTION, parse_host

_MS = 1e3  # milliseconds of a second

SpeculateOption = Annotated[
    str,
    typer.Option(
        help="Guess the next tokens of texts from their own words: off, auto (where it pays) or"
        " ngram (always). Answers are the same."
    ),
]
PolicyOption = Annotated[str, typer.Option(help="Scheduling policy: deadline, priority or fcfs.")]
MaxQueueOption = Annotated[
    float, typer.Option(min=0.001, help="Seconds in which a request must have started.")
]
MaxPrefillOption = Annotated[
    float,
    typer.Option(min=0, help="Seconds from a request's start to its first output; 0: no limit."),
]
MaxDecodeOption = Annotated[
    float,
    typer.Option(min=0, help="Seconds from a request's first output to its last; 0: no limit."),
]
KvMibOption = Annotated[
    int, typer.Option(min=0, help="Memory for keys and values; 0 takes most of the free memory.")
]
HostMibOption = Annotated[
    int, typer.Option(min=0, help="Host memory for pages evicted from the device.")
]
DiskMibOption = Annotated[
    int, typer.Option(min=0, help="Disk space for pages evicted from host memory.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(help="Require this key. `ps` shows it; prefer IZWI_API_KEY."),
]
ApiKeysOption = Annotated[
    Path | None, typer.Option(help="Require a key from this file; `izwi keys add` makes keys.")
]
CorsOriginOption = Annotated[
    list[str] | None,
    typer.Option(help="Allow web pages of this origin, such as https://a.example; repeatable."),
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Listen on a public address without requiring a key.")
]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option(help="Accept this host name, too, such as a proxy's public name; repeatable."),
]
DrainOption = Annotated[
    float, typer.Option(min=0, help="Seconds that running requests have to finish after SIGTERM.")
]
AttentionOption = Annotated[
    str, typer.Option(help="Attention of the decoders: auto, torch or triton.")
]
RequireConsentOption = Annotated[
    bool,
    typer.Option(
        "--require-consent",
        envvar="IZWI_REQUIRE_CONSENT",
        help="Clone only with the id of a recording of the speaker's consent.",
    ),
]
RecordOption = Annotated[
    Path | None,
    typer.Option(
        help="Record requests and their output for `izwi replay`; contains callers' data."
    ),
]
ReferenceHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="Fetch ref_audio URLs from this host over https (http://HOST:PORT for plain http). "
        "List private hosts by IP address. Repeatable. Default: fetch nothing.",
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
    int, typer.Option(min=1, help="With --manage-models: number of models that share the memory.")
]
AuditLogOption = Annotated[
    Path | None, typer.Option(help="Append a JSON line for each request, without its content.")
]
LogFormatOption = Annotated[
    str | None,
    typer.Option(help="Log lines as text or json. Default: text, or IZWI_LOG_FORMAT."),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option(
        metavar="[MODULE=]LEVEL,...",
        help="Least level of log lines, such as info,izwi.engine=debug. Default: info, or "
        "IZWI_LOG_LEVEL.",
    ),
]
LiveLeadOption = Annotated[
    int | None,
    typer.Option(
        help="Milliseconds of audio that live voice sends ahead of its playback; 0: as fast as "
        "it is generated. Sessions may ask for another. Default: 250, or IZWI_LIVE_LEAD_MS.",
    ),
]
LiveVadOption = Annotated[
    str | None,
    typer.Option(
        help="What detects speech in live voice: webrtc, or silero, which hears people in noise "
        "better (pip install 'izwi[silero]'). Sessions may ask for another. Default: webrtc, or "
        "IZWI_LIVE_VAD.",
    ),
]
ApiServersOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=64,
        help="API-server processes beside the engine process; 0: one process in all.",
    ),
]
InProcessOption = Annotated[
    bool,
    typer.Option("--in-process", help="Same as --api-servers 0: engine and HTTP in one process."),
]


ApiOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help=f"Serve these vendors' APIs, too: {', '.join(APIS)}. Default: none, or IZWI_APIS.",
    ),
]
ReplicasOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=64,
        help="Engine processes behind the API servers, one GPU after the other. Default: 1, or one "
        "for each of --devices.",
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option(metavar="D0,D1,...", help="Device of each engine process, such as cuda:0,cuda:1."),
]
TensorParallelOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=64,
        help="Devices over which each engine's models are split, for models that one does not hold "
        "or that one is too slow for; --devices then lists so many for each engine.",
    ),
]
RouterOption = Annotated[
    str,
    typer.Option(
        help="How requests are placed on replicas: prefix, least_load, round_robin, random, fcfs."
    ),
]
MaxInFlightOption = Annotated[
    int, typer.Option(min=0, help="Requests that all replicas may have at a time; 0: no limit.")
]
MaxInFlightEachOption = Annotated[
    int, typer.Option(min=0, help="Requests that one replica may have at a time; 0: no limit.")
]
MaxWaitOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Refuse a stream whose first output is predicted to take longer; 0: no limit.",
    ),
]
PrefillReplicasOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="The first replicas, which compute long prompts for the others; 0: each its own.",
    ),
]
PrefillPositionsOption = Annotated[
    int, typer.Option(min=1, help="Positions of such a prompt that are not cached, at least.")
]
CtlOption = Annotated[
    bool,
    typer.Option(
        "--ctl", help="Accept `izwi ctl` of this user on this machine; always with --replicas."
    ),
]
DegradeAtOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="Degrade answers of a chat model while so many requests wait for it; 0: never.",
    ),
]
DegradeMaxTokensOption = Annotated[
    int,
    typer.Option(min=0, help="Most tokens of an answer then; fewer if more wait. 0: no limit."),
]
DegradeMaxDecodeOption = Annotated[
    float,
    typer.Option(
        min=0.0,
        help="Most seconds of an answer then, from its first token; fewer if more wait. 0: no "
        "limit.",
    ),
]
DegradeToOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SMALLER", help="The chat model that answers then; repeatable."),
]
PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=N[,N]",
        help="Serve a model only from these replicas, such as izwi-tiny-asr=0; repeatable.",
    ),
]
MinReadyOption = Annotated[
    int, typer.Option(min=1, help="Replicas that must be ready for /readyz to say so.")
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]SOURCE",
        help="Folder, hub id or embedded name, served as NAME if given; repeatable. Default: "
        "embedded.",
    ),
]
ImagesOption = Annotated[
    str | None,
    typer.Option(
        metavar="[NAME=]FOLDER",
        help="Draw images with this pipeline of diffusers, in a process that starts with the first "
        "(pip install 'izwi[images]').",
    ),
]
VideosOption = Annotated[
    str | None,
    typer.Option(
        metavar="[NAME=]FOLDER", help="Draw videos with this pipeline, in a process like --images."
    ),
]
ImagesMibOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="Memory for --images, and as much for --videos: of the GPU, which speech then leaves"
        " free, or the host's without one. More ends the process that draws, not the server. 0: no"
        " limit, and none left free.",
    ),
]
RunnerOption = Annotated[
    str,
    typer.Option(
        help="What runs the models: izwi, or transformers for any chat model that it knows"
        " (pip install 'izwi[transformers]').",
    ),
]
WarmOption = Annotated[
    Path | None,
    typer.Option(help="File of system prompts and voices that engines compute when they start."),
]
TlsCertOption = Annotated[
    Path | None, typer.Option(help="Serve HTTPS with this certificate, a PEM file.")
]
TlsKeyOption = Annotated[
    Path | None, typer.Option(help="Private key, if it is not in the certificate's file.")
]
AliasOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ALIAS=NAME",
        help="Serve a model under this name, too, such as tts-1=izwi-tiny-tts; repeatable.",
    ),
]


AdapterOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL:NAME=FOLDER",
        help="Serve a model with this LoRA adapter (PEFT's layout) as MODEL:NAME, too; repeatable.",
    ),
]


def serve(
    model: ModelOption = None,
    runner: RunnerOption = "izwi",
    adapter: AdapterOption = None,
    alias: AliasOption = None,
    api: ApiOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")] = 8000,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    record: RecordOption = None,
    warm: WarmOption = None,
    images: ImagesOption = None,
    videos: VideosOption = None,
    images_mib: ImagesMibOption = 0,
    policy: PolicyOption = "deadline",
    speculate: SpeculateOption = "off",
    max_queue_s: MaxQueueOption = 60.0,
    max_prefill_s: MaxPrefillOption = 0.0,
    max_decode_s: MaxDecodeOption = 0.0,
    device_mib: DeviceMibOption = 0,
    kv_mib: KvMibOption = 0,
    kv_dtype: KvDtypeOption = "auto",
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
    max_models: MaxModelsOption = 5,
    live_lead_ms: LiveLeadOption = None,
    live_vad: LiveVadOption = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    drain_s: DrainOption = 30.0,
    api_servers: ApiServersOption = 1,
    in_process: InProcessOption = False,
    replicas: ReplicasOption = 0,
    devices: DevicesOption = None,
    tensor_parallel: TensorParallelOption = 1,
    router: RouterOption = "prefix",
    max_in_flight: MaxInFlightOption = 0,
    max_in_flight_each: MaxInFlightEachOption = 0,
    max_wait_ms: MaxWaitOption = 0.0,
    prefill_replicas: PrefillReplicasOption = 0,
    prefill_positions: PrefillPositionsOption = 1024,
    min_ready: MinReadyOption = 1,
    place: PlaceOption = None,
    degrade_at: DegradeAtOption = 0,
    degrade_max_tokens: DegradeMaxTokensOption = 0,
    degrade_max_decode_s: DegradeMaxDecodeOption = 0.0,
    degrade_to: DegradeToOption = None,
    ctl: CtlOption = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Serve speech, transcription and chat over HTTP, for OpenAI's clients."""
    with report_failures():
        _set_up_log(log_format, log_level)
        access = _access(api_key, api_keys, cors_origin, audit_log)
        check_exposure(host, access, insecure=insecure)
        access = replace(access, allowed_hosts=allowed_hosts(host, access, allowed_host or ()))
        hosts = tuple(parse_host(entry, OPTION) for entry in reference_host or ())
        config = EngineConfig(
            policy=policy,
            speculate=speculate,
            max_wait_s=max_queue_s,
            max_prefill_s=max_prefill_s,
            max_decode_s=max_decode_s,
            device_bytes=device_mib << 20,
            images_bytes=(images_mib << 20) * sum(one is not None for one in (images, videos)),
            kv_bytes=kv_mib << 20,
            kv_dtype=kv_dtype,
            host_bytes=host_mib << 20,
            disk_bytes=disk_mib << 20,
            max_models=max_models if manage_models else 1,
            adapters=bool(adapter),
        )
        settings = replace(_settings(live_lead_ms, live_vad), access=access, offline=offline)
        settings = replace(settings, require_consent=require_consent, manage_models=manage_models)
        settings = replace(settings, reference_hosts=hosts or settings.reference_hosts)
        settings = replace(settings, model_aliases=parse_aliases(alias or ()))
        settings = replace(settings, warm=_warm_file(warm))
        degradation = read_degradation(
            degrade_at, degrade_max_tokens, degrade_to or (), degrade_max_decode_s
        )
        settings = replace(settings, degradation=degradation)
        settings = replace(settings, tls=read_tls_files(tls_cert, tls_key))
        if images is not None:
            settings = replace(settings, image_model=read_image_model(images))
        if videos is not None:
            settings = replace(settings, video_model=read_image_model(videos, "--videos"))
        if api is not None:
            settings = replace(settings, apis=api_names(api, "--api"))
        runtime = RuntimeOptions(device, dtype, offline, weights, attention, runner)
        loads = (tuple(model or DEFAULT_MODELS), runtime, config)
        num_api_servers = api_servers if _can_part(settings, record) and not in_process else 0
        require_one_of("--router", router, tuple(ROUTER_POLICIES))
        limits = max_in_flight, max_in_flight_each, max_wait_ms / _MS
        apart = prefill_replicas, prefill_positions
        routing = RouterOptions(router, config.page_size, *limits, *apart)
        used = parse_devices(replicas, devices, device, tensor_parallel)
        places = parse_places(place or ())
        engines = ReplicaOptions(used, routing, min_ready, places, tensor_parallel)
        options = ServeOptions(*loads, settings, drain_s, num_api_servers, record, engines, ctl)
        options = replace(options, adapters=parse_adapters(adapter or ()))
        check_replicas(options)
        check_runner(options, has_models=bool(model))
        with _drawing(options, images_mib << 20) as options:
            _run(options, host, port)


@contextmanager
def _drawing(options: ServeOptions, memory_bytes: int) -> Iterator[ServeOptions]:
    """Run the processes that draw, if any are wanted; yield the options with their sockets.

    Args:
        options: What to serve.
        memory_bytes: What each of them may use; 0: no limit.
    """
    settings = options.settings
    with ExitStack() as stack:

        def started(model: ImageModel | None) -> ImageModel | None:
            if model is None:
                return None
            from izwi_api.drawing.options import PipelineOptions
            from izwi_api.drawing.supervised import drawing_process

            how = PipelineOptions(
                folder=str(model.folder), device=options.runtime.device, memory_bytes=memory_bytes
            )
            path = stack.enter_context(drawing_process(how, settings.hung_after_s))
            return replace(model, socket=path)

        images, videos = started(settings.image_model), started(settings.video_model)
        yield replace(options, settings=replace(settings, image_model=images, video_model=videos))


def _warm_file(path: Path | None) -> Path | None:
    """Return the absolute path of a file that can be read. Raises InvalidRequest."""
    if path is None:
        return None
    from izwi_api.schemas.warm_file import read_warm_file

    read_warm_file(path)
    return path.absolute()


def parse_devices(
    num_replicas: int, devices: str | None, device: str, tensor_parallel: int = 1
) -> tuple[str, ...]:
    """Return the devices of the engine processes; empty if there is one on the usual device.

    Args:
        num_replicas: As given; 0 if it was not.
        devices: Devices, separated by commas; None if they were not given.
        device: The device of all engines if `devices` is None.
        tensor_parallel: Devices of each engine.

    Raises:
        InvalidRequest: The two contradict each other, or a device has no name.
    """
    names = tuple(name.strip() for name in devices.split(",")) if devices is not None else ()
    if "" in names:
        raise InvalidRequest(f"--devices has an empty name: {devices!r}", param="devices")
    if len(names) % tensor_parallel:
        raise InvalidRequest(
            f"--tensor-parallel {tensor_parallel} takes so many devices for each engine, which "
            f"{len(names)} of --devices are not",
            param="devices",
        )
    if names and num_replicas not in (0, len(names) // tensor_parallel):
        raise InvalidRequest(
            f"--replicas {num_replicas} and --devices {devices} contradict each other: give one",
            param="devices",
        )
    num_devices = max(1, num_replicas) * tensor_parallel
    return names or ((device,) * num_devices if num_devices > 1 else ())


def parse_smaller(entries: Sequence[str]) -> dict[str, str]:
    """Read `NAME=SMALLER` entries. Raises InvalidRequest."""
    smaller: dict[str, str] = {}
    for entry in entries:
        name, _, other = entry.partition("=")
        if not name or not other or name == other or name in smaller:
            raise InvalidRequest(
                "--degrade-to must be like 'chat-8b=chat-1b', once for each model, got {entry!r}",
                param="degrade_to",
            )
        smaller[name] = other
    return smaller


def read_degradation(
    waiting: int, max_tokens: int, smaller: Sequence[str], max_decode_s: float = 0.0
) -> Degradation | None:
    """Return how answers are degraded under load; None: never. Raises InvalidRequest."""
    how = max_tokens or smaller or max_decode_s
    if not (waiting or how):
        return None
    if not (waiting and how):
        raise InvalidRequest(
            "--degrade-at says when answers are degraded, and --degrade-max-tokens, "
            "--degrade-max-decode-s or --degrade-to how: give both",
            param="degrade_at",
        )
    return Degradation(waiting, max_tokens, parse_smaller(smaller), max_decode_s)


def parse_places(entries: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read `NAME=0,1` entries. Raises InvalidRequest."""
    places: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        name, _, numbers = entry.rpartition("=")
        if not name or not all(number.isdecimal() for number in numbers.split(",")):
            raise InvalidRequest(
                f"--place must be like 'izwi-tiny-asr=0' or 'izwi-tiny-asr=0,1', got {entry!r}",
                param="place",
            )
        places[name] = places.get(name, ()) + tuple(map(int, numbers.split(",")))
    return places


def check_replicas(options: ServeOptions) -> None:
    """Refuse what several engine processes cannot do. Raises InvalidRequest."""
    limits_wait = options.replicas.router.max_wait_s > 0
    if (limits_wait or options.operators) and not options.num_api_servers:
        raise InvalidRequest(
            f"{'--max-wait-ms' if limits_wait else '--ctl'} needs API servers in processes of "
            "their own: leave out --in-process and --api-servers 0",
            param="max_wait_ms" if limits_wait else "ctl",
        )
    if options.replicas.tensor_parallel > 1 and not options.num_api_servers:
        raise InvalidRequest(
            "--tensor-parallel needs API servers in processes of their own: leave out "
            "--in-process and --api-servers 0",
            param="tensor_parallel",
        )
    if options.replicas.tensor_parallel > 1 and options.adapters:
        raise InvalidRequest(
            "--tensor-parallel and --adapter exclude each other", param="tensor_parallel"
        )
    if options.replicas.tensor_parallel > 1 and options.settings.manage_models:
        raise InvalidRequest(
            "--tensor-parallel and --manage-models exclude each other", param="tensor_parallel"
        )
    if options.replicas.count == 1:
        return
    if not options.num_api_servers:
        raise InvalidRequest(
            "several replicas need API servers in processes of their own: leave out --in-process "
            "and --api-servers 0, and --record with --manage-models",
            param="replicas",
        )
    if options.record is not None:
        raise InvalidRequest(
            "--record records one engine: use it without --replicas", param="record"
        )


def check_runner(options: ServeOptions, *, has_models: bool) -> None:
    """Refuse what another runner than izwi's own cannot do. Raises InvalidRequest.

    Args:
        options: What to serve.
        has_models: Whether `--model` was given.
    """
    runtime = options.runtime
    if runtime.runner == "izwi":
        return
    require_one_of("runner", runtime.runner, RUNNERS)
    given = {
        "--record": options.record is not None,
        "--manage-models": options.settings.manage_models,
        "--adapter": bool(options.adapters),
        "--tensor-parallel": options.replicas.tensor_parallel > 1,
        "--weights": runtime.weights != "auto",
        "--attention": runtime.attention != "auto",
        "--kv-dtype": options.config.kv_dtype != "auto",
        "--speculate": options.config.speculate != "off",
        "--policy": options.config.policy != EngineConfig().policy,
        "--prefill-replicas": options.replicas.router.num_prefill > 0,
    }
    for name, is_given in given.items():
        if is_given:
            raise InvalidRequest(f"{name} needs izwi's own runner", param="runner")
    if not has_models:
        raise InvalidRequest(f"--runner {runtime.runner} needs --model", param="runner")
    if find_spec(runtime.runner) is None:
        raise InvalidRequest(
            f"--runner {runtime.runner} needs a package: pip install 'izwi[{runtime.runner}]'",
            param="runner",
        )


def _set_up_log(log_format: str | None, log_level: str | None) -> None:
    """Log as the options or the environment say. Raises InvalidRequest."""
    # its lines name calls, of which other commands know nothing
    from izwi_api.serve.process_log import log_as_the_server

    if log_level is not None:
        log_levels(log_level, "--log-level")
    for name, value in (("IZWI_LOG_FORMAT", log_format), ("IZWI_LOG_LEVEL", log_level)):
        if value is not None:
            os.environ[name] = value  # the other processes read it, before they get any message
    log_as_the_server(read_log(os.environ))


def _can_part(settings: Settings, record: Path | None) -> bool:
    """Whether API servers and engine can be separate processes.

    A recording is one engine's, and models that are loaded later have engines of their own.
    """
    return os.name == "posix" and not (settings.manage_models and record is not None)


def _run(serve_options: ServeOptions, host: str, port: int) -> None:
    """Serve, in as many processes as the options say."""
    if not serve_options.num_api_servers:
        from izwi_api.serve.in_process import serve_in_process

        code = serve_in_process(serve_options, host, port)
    else:
        from izwi_api.serve.supervisor import serve_in_processes

        try:
            code = serve_in_processes(serve_options, host, port)
        except StartFailed as failed:
            tell_failure(failed)
            code = failed.exit_code
    if code:
        raise typer.Exit(code)


def _settings(live_lead_ms: int | None, live_vad: str | None) -> Settings:
    """Return the environment's settings, those of live voice overridden by the options."""
    settings = read_settings(os.environ)
    if live_lead_ms is not None:
        lead_ms = check_lead_ms(live_lead_ms, "--live-lead-ms")
        settings = replace(settings, live_lead_ms=lead_ms)
    if live_vad is not None:
        settings = replace(settings, live_vad=vad_name(live_vad, "--live-vad"))
    check_vad(settings.live_vad, "IZWI_LIVE_VAD" if live_vad is None else "--live-vad")
    return settings


def _access(
    api_key: str | None,
    api_keys: Path | None,
    cors_origin: list[str] | None,
    audit_log: Path | None,
) -> Access:
    """Return the environment's access settings, overridden by the options."""
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
    KeyRing(access.api_keys_file)  # refuse a broken file before the models are loaded
    return access
