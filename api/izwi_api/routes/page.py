"""GET /: the web page, if its package is installed."""

from __future__ import annotations

import re
from importlib import resources

from fastapi import APIRouter, HTTPException
from starlette.responses import Response

router = APIRouter()

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The page's files lie in one folder. Any other name, and any path, is refused.
_NAME = re.compile(r"[a-z][a-z-]*\.(html|js|css|svg)")
# The page loads only from this server, and other pages may not embed it.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

_HEADERS = {"cache-control": "no-cache", "content-security-policy": _POLICY}
_DOCS = """\
The API of this server is described by /openapi.json (OpenAPI 3.1), which Swagger UI, Redoc, Postman
and generators of clients read. It follows the OpenAI API; what differs is in docs/clients.md.
"""


@router.get("/", include_in_schema=False)
async def index() -> Response:
    """Serve the page."""
    return _file("index.html")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """Say where the API is described; there is no page that needs code from other servers."""
    return Response(_DOCS, media_type="text/plain; charset=utf-8", headers=_HEADERS)


@router.get("/page/{name}", include_in_schema=False)
async def asset(name: str) -> Response:
    """Serve one of the page's files."""
    return _file(name)


def _file(name: str) -> Response:
    match = _NAME.fullmatch(name)
    if match is None:
        raise HTTPException(404, "Not Found")
    try:
        content = resources.files("izwi_web").joinpath(name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise HTTPException(404, f"the web page has no file {name}, or is not installed") from error
    return Response(content, media_type=_MEDIA_TYPES[f".{match[1]}"], headers=_HEADERS)
