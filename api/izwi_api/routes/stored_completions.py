"""/v1/chat/completions/{id}: completions that were stored by their caller (`store`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.routes.openapi import json_body
from izwi_api.schemas.chat import StoredUpdateBody
from izwi_api.services.store.completions import Listed
from izwi_api.services.store.items import Range
from izwi_api.usage.metering import key_name

router = APIRouter()

_PATH = "/v1/chat/completions"
_METADATA = re.compile(r"metadata\[(.*)\]", re.DOTALL)

After = Annotated[str | None, Query(max_length=128)]
Limit = Annotated[int, Query(ge=0, le=100)]
Order = Literal["asc", "desc"]


@router.get(_PATH)
async def list_chat_completions(
    request: Request,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    model: str | None = None,
) -> dict[str, object]:
    """List stored completions, page by page; `metadata[key]=value` chooses among them."""
    wanted = Range(after, limit, order == "desc", model)
    completions = services_of(request).completions
    return _list_object(await completions.page(key_name(), wanted, _metadata(request.query_params)))


@router.get(_PATH + "/{completion_id}")
async def get_chat_completion(request: Request, completion_id: str) -> dict[str, Any]:
    """Return a stored completion."""
    return await services_of(request).completions.find(key_name(), completion_id)


@router.post(_PATH + "/{completion_id}", openapi_extra=json_body(StoredUpdateBody, {}))
async def update_chat_completion(request: Request, completion_id: str) -> dict[str, Any]:
    """Give a stored completion other metadata."""
    services = services_of(request)
    values = await read_json(request, services.settings.max_json_bytes)
    body = StoredUpdateBody.model_validate(values)
    return await services.completions.label(key_name(), completion_id, body.metadata or {})


@router.delete(_PATH + "/{completion_id}")
async def delete_chat_completion(request: Request, completion_id: str) -> dict[str, object]:
    """Forget a stored completion."""
    await services_of(request).completions.delete(key_name(), completion_id)
    return {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}


@router.get(_PATH + "/{completion_id}/messages")
async def list_chat_completion_messages(
    request: Request,
    completion_id: str,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
) -> dict[str, object]:
    """List the messages that a stored completion answers, page by page."""
    wanted = Range(after, limit, order == "desc")
    completions = services_of(request).completions
    return _list_object(await completions.messages(key_name(), completion_id, wanted))


def _metadata(query: Mapping[str, str]) -> dict[str, str]:
    """The metadata that a list is chosen by."""
    matches = ((_METADATA.fullmatch(name), value) for name, value in query.items())
    return {match[1]: value for match, value in matches if match}


def _list_object(listed: Listed) -> dict[str, object]:
    return {
        "object": "list",
        "data": listed.data,
        "first_id": listed.data[0]["id"] if listed.data else None,
        "last_id": listed.data[-1]["id"] if listed.data else None,
        "has_more": listed.has_more,
    }
