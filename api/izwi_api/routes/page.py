"""GET /: the web page, if its package is installed."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, HTTPException
from starlette.responses import Response

router = APIRouter()

_FILES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
}
# The page loads only from this server and may not be framed by another.
_POLICY = "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; frame-ancestors 'none'"

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
    """Say where the API is described: there is no page that needs code from another server."""
    return Response(_DOCS, media_type="text/plain; charset=utf-8", headers=_HEADERS)


@router.get("/page/{name}", include_in_schema=False)
async def asset(name: str) -> Response:
    """Serve one of the page's files."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in _FILES:
        raise HTTPException(404, "Not Found")
    try:
        content = resources.files("izwi_web").joinpath(name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise HTTPException(404, "the web page is not installed") from error
    return Response(content, media_type=_FILES[name], headers=_HEADERS)
