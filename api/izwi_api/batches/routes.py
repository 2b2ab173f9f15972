"""/v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response, StreamingResponse

from izwi.errors import InvalidRequest, StorageFull
from izwi_api.batches.lines import first_model
from izwi_api.batches.runner import BatchRunner
from izwi_api.batches.store import KEPT_S, Batch, BatchStore, Page, new_batch_id
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import open_upload, read_json
from izwi_api.routes.openapi import answers, form_body, json_body
from izwi_api.usage.metering import key_name

router = APIRouter()

_READ_BYTES = 1 << 18
_CONTENT_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_MAX_NAME_CHARS = 255
_HOUR_S = 3600

After = Annotated[str | None, Query(max_length=128)]
Order = Literal["asc", "desc"]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class FileForm(BaseModel):
    """The fields of an upload beside its file."""

    model_config = ConfigDict(extra="forbid")

    purpose: Literal["batch", "user_data"]
    expires_after_anchor: Literal["created_at"] | None = Field(
        default=None, alias="expires_after[anchor]"
    )
    expires_after_seconds: int | None = Field(
        default=None, alias="expires_after[seconds]", ge=_HOUR_S, le=KEPT_S
    )


class BatchBody(BaseModel):
    """The body of POST /v1/batches."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: str
    endpoint: Literal[
        "/v1/chat/completions", "/v1/responses", "/v1/audio/speech", "/v1/audio/transcriptions"
    ]
    completion_window: Annotated[str, StringConstraints(pattern="^[1-9][0-9]{0,2}h$")]
    audio_output: Literal["base64", "files"] = "base64"
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None


def runner_of(request: Request) -> BatchRunner:
    """Return what runs the batches of this app."""
    runner: BatchRunner = request.app.state.izwi_batches
    return runner


def _store(request: Request) -> BatchStore:
    return runner_of(request).store


@router.post("/v1/files", openapi_extra=form_body(FileForm, "file"))
async def create_file(request: Request) -> dict[str, Any]:
    """Store a file: the input of a batch, or audio for its lines."""
    limit = services_of(request).settings.max_batch_file_bytes
    async with open_upload(request, limit) as (fields, upload):
        form = FileForm.model_validate(fields)
        name = (upload.filename or "file").encode(errors="replace").decode()[:_MAX_NAME_CHARS]
        kept_s = form.expires_after_seconds or KEPT_S
        store, what = _store(request), (key_name(), form.purpose, name, upload.file)
        try:
            file = await asyncio.to_thread(store.add_file, *what, kept_s)
        except OSError as error:
            raise StorageFull("the file cannot be stored") from error
    return file.shown()


@router.get("/v1/files")
async def list_files(
    request: Request,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Order = "desc",
    purpose: Annotated[str | None, Query(max_length=64)] = None,
) -> dict[str, Any]:
    """List the caller's files, page by page."""
    page = Page(after, limit, order == "desc")
    files, has_more = await asyncio.to_thread(_store(request).files, key_name(), page, purpose)
    return _listed([file.shown() for file in files], has_more)


@router.get("/v1/files/{file_id}")
async def get_file(request: Request, file_id: str) -> dict[str, Any]:
    """Describe a file."""
    return (await asyncio.to_thread(_store(request).file, key_name(), file_id)).shown()


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> dict[str, Any]:
    """Delete a file."""
    await asyncio.to_thread(_store(request).delete_file, key_name(), file_id)
    return {"id": file_id, "object": "file", "deleted": True}


@router.get(
    "/v1/files/{file_id}/content",
    response_class=Response,
    responses=answers("application/octet-stream"),
)
async def get_file_content(request: Request, file_id: str) -> Response:
    """Return the content of a file."""
    store = _store(request)
    file = await asyncio.to_thread(store.file, key_name(), file_id)
    content = await asyncio.to_thread(store.path(file.id).open, "rb")

    async def pieces() -> AsyncGenerator[bytes]:
        with content:
            while piece := await asyncio.to_thread(content.read, _READ_BYTES):
                yield piece

    headers = _CONTENT_HEADERS | {"content-length": str(file.bytes)}
    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


@router.post("/v1/batches", openapi_extra=json_body(BatchBody, {}))
async def create_batch(request: Request) -> dict[str, Any]:
    """Run the lines of a file in the background."""
    services, runner = services_of(request), runner_of(request)
    body = BatchBody.model_validate(await read_json(request, services.settings.max_json_bytes))
    store, owner = runner.store, key_name()
    file = await asyncio.to_thread(store.file, owner, body.input_file_id)
    if file.purpose != "batch":
        raise InvalidRequest("the file's purpose must be batch", param="input_file_id")
    model = await asyncio.to_thread(first_model, store.path(file.id), runner.max_line_bytes)
    if model is not None:
        services.registry.model(model)
    now = store.now_s()
    window = body.completion_window
    batch = Batch(
        *(new_batch_id(), owner, body.endpoint, file.id, window, now),
        expires_at=now + int(window.removesuffix("h")) * _HOUR_S,
        model=model,
        metadata=body.metadata,
        audio_output=body.audio_output,
    )
    await asyncio.to_thread(store.add_batch, batch)
    runner.wake()
    return batch.shown()


@router.get("/v1/batches")
async def list_batches(
    request: Request, after: After = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> dict[str, Any]:
    """List the caller's batches, the newest first."""
    page = Page(after, limit)
    batches, has_more = await asyncio.to_thread(_store(request).batches, key_name(), page)
    return _listed([batch.shown() for batch in batches], has_more)


@router.get("/v1/batches/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> dict[str, Any]:
    """Describe a batch."""
    return (await asyncio.to_thread(_store(request).batch, key_name(), batch_id)).shown()


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> dict[str, Any]:
    """Stop a batch; what is done stays in its files."""
    store = _store(request)

    def cancel(batch: Batch) -> None:
        if not batch.is_open:
            raise InvalidRequest(f"the batch has ended: it is {batch.status}", param="batch_id")
        if batch.status != "cancelling":
            batch.times = batch.times | {"cancelling_at": store.now_s()}
        batch.status = "cancelling"

    batch = await asyncio.to_thread(store.change, key_name(), batch_id, cancel)
    runner_of(request).wake()
    return batch.shown()


def _listed(data: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
