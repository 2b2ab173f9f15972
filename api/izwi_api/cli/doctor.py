"""`izwi doctor`: report what this machine can serve with, and what is missing."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from izwi.config import EngineConfig
from izwi.errors import IzwiError
from izwi_api.cli.options import (
    ApiKey,
    Device,
    DeviceMibOption,
    Dtype,
    KvDtypeOption,
    ServerUrl,
    WeightsOption,
)
from izwi_api.console import FAILED, messages
from izwi_api.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from izwi.backends.protocol import Backend

ModelOption = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]SOURCE", help="Plan the memory for this model; repeatable."),
]
_ONLINE_TIMEOUT_S = 5
_GPU_FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
_CODECS = ("libmp3lame", "libopus", "flac", "aac")
_LITTLE_DISK_BYTES = 5_000_000_000


class Status(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"  # works, but something useful is missing
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Attributes:
        area: "system", "device", "memory", "packages", "checkpoints", "home", "hub",
            "audio" or "server".
        name: The thing.
        detail: What was found, in words.
    """

    area: str
    name: str
    status: Status
    detail: str


def doctor(
    online: Annotated[
        bool, typer.Option("--online", help="Check that the Hugging Face hub responds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    model: ModelOption = None,
    weights: WeightsOption = "auto",
    kv_dtype: KvDtypeOption = "auto",
    device_mib: DeviceMibOption = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Check this machine; exit with 1 if something that izwi needs is missing or broken.

    With --model, also say what the checkpoint is, and how the device's memory would be used, before
    anything is loaded.
    """
    from izwi_api.cli.running_server import DEFAULT_URL, NONE, running_server

    with messages().status("looking"):
        config = EngineConfig(device_bytes=device_mib << 20, kv_dtype=kv_dtype)
        runtime = RuntimeOptions(device, dtype, not online, weights)
        findings = list(_findings(runtime, tuple(model or ()), config))
        if address := running_server(server, api_key):
            findings.append(_server(address, api_key))
        elif server != NONE:
            detail = "none is running there; izwi serve starts one"
            findings.append(Finding("server", DEFAULT_URL, Status.NOTE, detail))
    broken = any(finding.status is Status.FAILED for finding in findings)
    if as_json:
        fields = {"ok": not broken, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(fields, ensure_ascii=False))
    else:
        _show(findings)
    if broken:
        raise typer.Exit(FAILED)


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    colours = {Status.OK: "green", Status.NOTE: "yellow", Status.FAILED: "red"}
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        mark = Text(f"{finding.status:>6}", colours[finding.status])
        console.print(mark, Text(f"{finding.area:<12}{finding.name}: {finding.detail}"))


def _findings(
    runtime: RuntimeOptions, sources: tuple[str, ...], config: EngineConfig
) -> Iterator[Finding]:
    yield from _system()
    yield from _packages()
    backend = None
    try:
        from izwi.backends.choice import open_backend

        backend = open_backend(runtime.device, runtime.dtype, runtime.weights)
    except (ImportError, OSError, IzwiError) as error:
        yield Finding("device", runtime.device, Status.FAILED, str(error))
    if backend is not None:
        yield from _devices(backend)
        if sources:
            yield from _plan(backend, runtime, sources, config)
        else:
            yield from _checkpoints(backend)
    yield from _home()
    yield from _hub(online=not runtime.offline)
    yield from _audio()


def _system() -> Iterator[Finding]:
    version = platform.python_version()
    detail = f"{version} on {platform.system()} {platform.machine()}"
    enough = sys.version_info >= (3, 11)
    yield Finding("system", "python", Status.OK if enough else Status.FAILED, detail)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if {"SC_PHYS_PAGES", "SC_AVPHYS_PAGES"} <= os.sysconf_names.keys():
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        total, free = (os.sysconf(key) * page_bytes for key in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
        memory = f"{_gib(free)} of {_gib(total)} memory free"
    else:
        memory = "memory unknown"
    yield Finding("system", "cpu", Status.OK, f"{cores} cores, {memory}")


def _packages() -> Iterator[Finding]:
    """Compare the distribution's requirements with the installed packages."""
    try:
        wanted = metadata.requires("izwi") or []
        yield Finding("packages", "izwi", Status.OK, metadata.version("izwi"))
    except metadata.PackageNotFoundError:
        yield Finding("packages", "izwi", Status.FAILED, "not installed: no model family is known")
        return
    for name in filter(None, map(_needed_here, wanted)):
        version = _version(name)
        status = Status.OK if version else Status.FAILED
        yield Finding("packages", name, status, version or "missing")


def _needed_here(requirement: str) -> str | None:
    """Return a requirement's name; None if it is for an extra or another system."""
    head, _, marker = requirement.partition(";")
    system = re.search(r"""sys_platform\s*==\s*['"](\w+)['"]""", marker)
    if "extra" in marker or (system and system[1] != sys.platform):
        return None
    return re.split(r"[\[<>=!~ ]", head.strip())[0]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices(backend: Backend) -> Iterator[Finding]:
    from izwi.backends.torch.devices import cuda_devices, has_mps

    gpus = cuda_devices()
    for gpu in gpus:
        major, minor = gpu.capability
        detail = (
            f"{gpu.product}, compute capability {major}.{minor},"
            f" {_gib(gpu.free_bytes)} of {_gib(gpu.total_bytes)} free"
        )
        yield Finding("device", gpu.name, Status.OK, detail)
    if has_mps():
        yield Finding("device", "mps", Status.OK, "Metal is available")
    yield from _gpu_gaps(has_cuda=bool(gpus))
    memory = backend.memory()
    use = "for keys and values" if memory.is_shared else "free for models"
    device = f"{backend.device_name} in {backend.dtype_name}"
    detail = f"{device}; {_gib(memory.free_bytes)} {use}"
    yield Finding("device", "used", Status.OK, detail)


def _plan(
    backend: Backend, runtime: RuntimeOptions, sources: tuple[str, ...], config: EngineConfig
) -> Iterator[Finding]:
    """Describe how models would use the device's memory, from estimates: none is loaded."""
    from izwi.checkpoints.registry import named
    from izwi.runner.planning import plan_folders

    if config.device_bytes:
        backend.limit_memory(config.device_bytes)
    try:
        folders = dict(named(source, offline=runtime.offline) for source in sources)
        for name, folder in folders.items():
            yield _described(name, folder)
        plan = plan_folders(folders, backend, config, runtime.weights)
    except (IzwiError, OSError) as error:
        yield Finding("memory", "plan", Status.FAILED, str(error))
        return
    for name, detail in plan.lines():
        yield Finding("memory", name, Status.OK, detail)


def _described(name: str, folder: Path) -> Finding:
    """Say what a checkpoint is: family, format, bits and size."""
    from izwi.checkpoints.description import describe

    try:
        return Finding("checkpoints", name, Status.OK, str(describe(folder)))
    except (IzwiError, OSError) as error:
        return Finding("checkpoints", name, Status.FAILED, str(error))


def _gpu_gaps(*, has_cuda: bool) -> Iterator[Finding]:
    """Report what a GPU still needs, if there is one."""
    from izwi.backends.torch.devices import is_built_for_gpus

    if has_cuda:
        if (version := _version("triton")) is None:
            detail = "not installed: a GPU is several times slower without it; pip install triton"
            yield Finding("device", "triton", Status.NOTE, detail)
        else:
            yield Finding("device", "triton", Status.OK, version)
        yield from _kernels()
        return
    if not any(Path(path).exists() for path in _GPU_FILES):
        return
    if not is_built_for_gpus():
        detail = f"a GPU is here, but torch {_version('torch')} was built without CUDA"
    else:
        detail = "a GPU is here, but torch cannot use it: driver too old, or not allowed"
    yield Finding("device", "cuda", Status.NOTE, detail)


def _checkpoints(backend: Backend) -> Iterator[Finding]:
    from izwi.checkpoints.registry import Registry, embedded
    from izwi_api.settings import DEFAULT_MODELS

    found = embedded()
    for name in dict.fromkeys((*DEFAULT_MODELS, *found)):
        if name not in found:
            yield Finding("checkpoints", name, Status.FAILED, "missing")
            continue
        try:
            registry = Registry(backend)
            task = registry.model(registry.load(name, offline=True)).capabilities[0]
        except (IzwiError, OSError) as error:
            yield Finding("checkpoints", name, Status.FAILED, str(error))
            continue
        yield Finding("checkpoints", name, Status.OK, f"loads, does {task}")


def _kernels() -> Iterator[Finding]:
    """Count stored kernels: without them a first start takes more than a minute."""
    from izwi.backends.torch.devices import kept_kernels

    kept = kept_kernels()
    if kept is None:
        return
    folder, count = kept
    detail = f"{count} compiled in {folder}"
    if count:
        yield Finding("device", "kernels", Status.OK, detail)
    else:
        yield Finding("device", "kernels", Status.NOTE, f"{detail}: izwi warm MODEL compiles them")


def _home() -> Iterator[Finding]:
    from izwi_api.environment import read_settings

    try:
        home = read_settings(os.environ).home
        # Nothing is created: the first existing parent folder must be writable.
        there = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except (IzwiError, OSError) as error:
        yield Finding("home", "writable", Status.FAILED, str(error))
        return
    status = Status.OK if free >= _LITTLE_DISK_BYTES else Status.NOTE
    yield Finding("home", str(home), status, f"writable, {_gib(free)} free")


def _hub(*, online: bool) -> Iterator[Finding]:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    kept = sorted(path.name for path in cache.glob("models--*")) if cache.is_dir() else []
    yield Finding("hub", "cache", Status.OK, f"{cache}, {len(kept)} checkpoints")
    if constants.HF_HUB_OFFLINE:
        detail = "HF_HUB_OFFLINE is set: only checkpoints in the cache are found"
        yield Finding("hub", "mode", Status.NOTE, detail)
    elif not online:
        yield Finding("hub", "mode", Status.OK, "online when asked; --online tries it")
    if online:
        yield _tried(constants.ENDPOINT)


def _tried(address: str) -> Finding:
    import httpx

    try:
        httpx.head(address, timeout=_ONLINE_TIMEOUT_S, follow_redirects=True).raise_for_status()
        return Finding("hub", address, Status.OK, "answers")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding("hub", address, Status.FAILED, f"no response: {error}")


def _server(url: str, api_key: str | None) -> Finding:
    from izwi_api.client import AsyncClient

    async def models() -> list[dict[str, Any]]:
        async with AsyncClient(url, api_key=api_key) as client:
            return await client.models()

    try:
        served = asyncio.run(models())
    except IzwiError as error:
        return Finding("server", url, Status.FAILED, str(error))
    names = ", ".join(str(entry["id"]) for entry in served)
    return Finding("server", url, Status.OK, f"serves {names or 'no model'}")


def _audio() -> Iterator[Finding]:
    from izwi_api.cli.audio_out import find_player

    yield _codecs()
    player = find_player()
    status = Status.OK if player else Status.NOTE
    yield Finding("audio", "player", status, player or "none: izwi say writes files")
    for program in ("ffmpeg", "espeak-ng"):
        where = shutil.which(program)
        yield Finding("audio", program, Status.OK, f"not needed; {where or 'not here'}")


def _codecs() -> Finding:
    try:
        import av.codec
    except (ImportError, OSError) as error:
        return Finding("audio", "codecs", Status.FAILED, str(error))
    missing = [name for name in _CODECS if name not in av.codec.codecs_available]
    status = Status.FAILED if missing else Status.OK
    detail = f"missing: {', '.join(missing)}" if missing else ", ".join(_CODECS)
    return Finding("audio", "codecs", status, detail)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
