"""`izwi draw`: draw an image by a prompt, with a pipeline in a folder or on a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import ApiKey, Device, ServerUrl
from izwi_api.console import report_failures

if TYPE_CHECKING:
    from izwi_api.schemas.images import ImagesBody

_FORMATS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_DEFAULT_FILE = Path("image.png")

Prompt = Annotated[str, typer.Argument(help="What to draw.")]
ModelSource = Annotated[
    str | None,
    typer.Option(help="Folder of a pipeline of diffusers, or the name of a server's model."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="File to write: .png .jpg .webp. Default: image.png, if there is none."),
]
Size = Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help="In pixels. Default: the model's.")]
Quality = Annotated[str, typer.Option(help="low, medium or high: half, all or twice the steps.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps, instead of --quality.")]
Seed = Annotated[
    int | None,
    typer.Option(help="The same seed draws the same image. Default: a different one each time."),
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile the model: minutes for the first image.")
]
CpuOffload = Annotated[
    bool, typer.Option("--cpu-offload", help="Keep what does not run in the host's memory.")
]
AttentionBackend = Annotated[
    str | None, typer.Option(help="Attention of diffusers, such as native, flash or sage.")
]


def draw(
    prompt: Prompt,
    model: ModelSource = None,
    out: Out = None,
    size: Size = "auto",
    quality: Quality = "auto",
    steps: Steps = None,
    seed: Seed = None,
    compiled: Compile = False,
    cpu_offload: CpuOffload = False,
    attention_backend: AttentionBackend = None,
    device: Device = "auto",
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Draw an image, and write it to a file."""
    from izwi.errors import InvalidRequest
    from izwi_api.cli.running_server import running_server
    from izwi_api.console import messages

    with report_failures():
        path, file_format = _target(out)
        body = _body(prompt, size, quality, steps, seed, file_format)
        if model is not None and Path(model).is_dir():
            how = (device, compiled, cpu_offload, attention_backend)
            content = _draw_here(model, body, how)
        else:
            if compiled or cpu_offload or attention_backend or device != "auto":
                raise InvalidRequest(
                    "--compile, --cpu-offload, --attention-backend and --device are for a pipeline "
                    "in a folder: give it with --model"
                )
            found = running_server(server, api_key, serves={})
            if found is None:
                raise InvalidRequest(
                    "no server runs here: give the folder of a pipeline with --model, or start "
                    "`izwi serve --images FOLDER`",
                    param="model",
                )
            content = _draw_there(found, api_key, model, body)
        path.write_bytes(content)
        messages().print(f"{path}: {len(content):,} bytes", markup=False)


def _target(out: Path | None) -> tuple[Path, str]:
    """Return the file to write and its format. Raises InvalidRequest."""
    from izwi.errors import InvalidRequest
    from izwi_api.cli.target import check_file

    path = out or _DEFAULT_FILE
    if path.suffix.lower() not in _FORMATS:
        raise InvalidRequest(f"--out {path}: the suffix must be one of {', '.join(_FORMATS)}")
    check_file(path, "--out")
    if out is None and path.exists():
        raise InvalidRequest(
            f"{path} exists already; name a file with --out (--out {path} replaces it)", param="out"
        )
    return path, _FORMATS[path.suffix.lower()]


def _body(
    prompt: str, size: str, quality: str, steps: int | None, seed: int | None, file_format: str
) -> ImagesBody:
    """Return what is asked, validated as a server would. Raises InvalidRequest."""
    from pydantic import ValidationError

    from izwi.errors import InvalidRequest
    from izwi_api.schemas.images import ImagesBody, size_of

    fields: dict[str, object] = {
        "prompt": prompt,
        "size": size,
        "quality": quality,
        "output_format": file_format,
    }
    fields |= {
        name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None
    }
    try:
        body = ImagesBody.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise InvalidRequest(f"{name}: {first['msg']}", param=name) from error
    size_of(body)
    return body


def _draw_here(folder: str, body: ImagesBody, how: tuple[str, bool, bool, str | None]) -> bytes:
    """Draw with a pipeline, in a process of its own that ends with this command."""
    import asyncio
    import os

    from izwi_api.drawing.options import PipelineOptions
    from izwi_api.drawing.supervised import drawing_process
    from izwi_api.environment import read_settings
    from izwi_api.settings import read_image_model

    device, compiles, offloads, attention = how
    options = PipelineOptions(
        folder=str(read_image_model(folder, "--model").folder),
        device=device,
        compiles=compiles,
        offloads=offloads,
        attention=attention,
    )
    with drawing_process(options, read_settings(os.environ).hung_after_s) as socket:
        return asyncio.run(_follow(socket, body))


async def _follow(socket: Path, body: ImagesBody) -> bytes:
    """Draw one image, and show its steps at a terminal."""
    from contextlib import aclosing

    from izwi_api.console import messages
    from izwi_api.drawing.client import follow
    from izwi_api.drawing.jobs import Drawn, Step
    from izwi_api.services.image_jobs import job_of

    image = b""
    with messages().status("loading the pipeline") as status:
        async with aclosing(follow(socket, job_of(body))) as events:
            async for event in events:
                if isinstance(event, Step):
                    status.update(f"step {event.num_done} of {event.num_steps}")
                elif isinstance(event, Drawn):
                    image = event.content
    return image


def _draw_there(server: str, api_key: str | None, model: str | None, body: ImagesBody) -> bytes:
    """Have a server draw."""
    import asyncio

    from izwi_api.client import AsyncClient

    async def ask() -> bytes:
        async with AsyncClient(server, api_key=api_key) as client:
            (image,) = await client.draw(
                body.prompt,
                model=model,
                size=body.size,
                quality=body.quality,
                steps=body.steps,
                seed=body.seed,
                output_format=body.output_format,
            )
        return image

    return asyncio.run(ask())
