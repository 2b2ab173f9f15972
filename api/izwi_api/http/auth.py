"""Authentication: an API key for every route but probes, the page's files and images by address.

Without a required key, requests from other sites' pages are still refused: they must not use this
server through a visitor's browser.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi.errors import RateLimited
from izwi.fairness.callers import current_caller
from izwi_api.http.client_secrets import PREFIX, ClientSecret, ClientSecrets
from izwi_api.http.errors import error_body, refuse, response_to
from izwi_api.telemetry.calls import current_call
from izwi_api.usage.keys import ApiKey, KeyRing
from izwi_api.usage.limits import Clocks, KeyLimits, Meter
from izwi_api.usage.metering import Usage, current_usage
from izwi_api.usage.shared_counts import CountsFile

PROBES = frozenset({"/livez", "/readyz"})
# A browser sends no key when it loads the page that asks for one, so these files are public.
_PAGE = "/"
_PAGE_FILES = "/page/"
# A page shows an image without a key. Names of these files are secrets of their own.
_IMAGE_RESULTS = "/v1/images/results/"
# What a client secret gives access to.
_LIVE, _CALLS = "/v1/realtime", "/v1/realtime/calls"
# In the scope of a batch's line, which this process sends to its own app: the owner's key. No
# request from outside can set it.
LINE_OWNER = "izwi.line_owner"
# What carriers of telephone calls connect to, each below its name.
TELEPHONY = "/v1/telephony/"
_CLOCKS = Clocks()
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Browsers cannot set headers on a WebSocket; OpenAI's clients send the key as a subprotocol.
_SUBPROTOCOL = "openai-insecure-api-key."
# Response headers that pages of other sites may read.
ANSWER_HEADERS = (
    *("x-request-id", "retry-after", "x-should-retry", "x-izwi-ignored", "x-izwi-degraded"),
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "characters", "audio-seconds")
    ),
)


class Auth:
    """ASGI middleware that admits calls with a valid key, within the key's limits.

    It creates the call's `Usage`, also in `scope["state"]["usage"]`.

    Args:
        app: The app behind it.
        ring: The valid keys.
        origins: Origins of other sites' pages that may call; "*" for all.
        counts: Folder in which all API servers of this machine count the usage of keys; None counts
            in this process only.
        clocks: The clocks of the limits.
        client_secrets: Short-lived keys of live sessions; None accepts none.
    """

    def __init__(
        self,
        app: ASGIApp,
        ring: KeyRing,
        origins: Collection[str] = (),
        counts: Path | None = None,
        clocks: Clocks = _CLOCKS,
        client_secrets: ClientSecrets | None = None,
    ):
        self._client_secrets = client_secrets
        self._app, self._ring, self._origins = app, ring, origins
        self._counts, self._clocks = counts, clocks
        self._meters: dict[str, Meter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, or refuse the call."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = self._check(scope)
        usage: Usage = scope["state"]["usage"]
        if answer is not None:
            await refuse(answer, scope, receive, send)
            return

        async def with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(usage.headers())
            await send(message)

        token, caller = current_usage.set(usage), current_caller.set(_caller(scope, usage))
        try:
            await self._app(scope, receive, with_limits)
        finally:
            current_caller.reset(caller)
            current_usage.reset(token)

    def _check(self, scope: Scope) -> Response | None:
        """Return the refusal, or None if the call is admitted."""
        state = scope.setdefault("state", {})
        state["usage"] = Usage()
        if _is_free(scope):
            return None
        if LINE_OWNER in scope:
            return self._check_line(scope, scope[LINE_OWNER])
        presented = presented_key(scope)
        secret = self._secret_of(scope, presented)
        state["client_secret"] = secret
        if self._ring.is_open:
            is_allowed = secret is not None or not self._is_foreign(scope)
            return None if is_allowed else _wrong_origin()
        if presented is None:
            return _unauthorized("no API key was given: send the header Authorization: Bearer KEY")
        key = self._ring.find(presented)
        if secret is not None and secret.key_name is not None:
            key = self._ring.named(secret.key_name)
        if key is None:
            return _unauthorized("the API key is not valid")
        meter = self._meter_of(key)
        usage = state["usage"] = Usage(key.name, meter, partial(self._limits_of, key))
        if (call := current_call.get()) is not None:
            call.key = key.label
        if scope["type"] == "websocket":  # it gets no response, and routes must not see the key
            offered: list[str] = scope.get("subprotocols", [])
            scope["subprotocols"] = [p for p in offered if not p.startswith(_SUBPROTOCOL)]
        try:
            meter.admit()
        except RateLimited as error:
            answer = response_to(error)
            answer.headers.update(usage.headers())
            return answer
        return None

    def _check_line(self, scope: Scope, owner: str) -> Response | None:
        """Admit a batch's line: its owner's quotas of a day count, requests a minute do not."""
        if self._ring.is_open:
            return None
        key = self._ring.named(owner)
        if key is None:
            return _unauthorized("the API key that made this batch is not valid any more")
        limits = partial(self._limits_of, key)
        scope["state"]["usage"] = Usage(key.name, self._meter_of(key), limits)
        return None

    def _secret_of(self, scope: Scope, presented: str | None) -> ClientSecret | None:
        """Return the client secret that a live session presents."""
        opens = _LIVE if scope["type"] == "websocket" else _CALLS
        is_call = scope["type"] == "websocket" and scope["path"].startswith(TELEPHONY)
        if self._client_secrets is None or not (scope["path"] == opens or is_call):
            return None
        if presented is None or not presented.startswith(PREFIX):
            return None
        return self._client_secrets.read(presented)

    def _meter_of(self, key: ApiKey) -> Meter:
        meter = self._meters.get(key.name)
        if meter is None:
            self._forget_removed_keys()
            shared = CountsFile(self._counts, key.name) if self._counts is not None else None
            meter = Meter(key.limits, self._clocks, shared)
            self._meters[key.name] = meter
        meter.change(key.limits)
        return meter

    def _forget_removed_keys(self) -> None:
        """Drop the meters of removed keys, so that they are not as many as keys ever were.

        A key of the same name counts on from the shared counts; without these its meter stays.
        """
        if self._counts is not None:
            kept = self._meters.items()
            self._meters = {name: meter for name, meter in kept if self._ring.named(name)}

    def _limits_of(self, key: ApiKey) -> KeyLimits | None:
        """Return a key's limits of now; None if it was removed."""
        known = self._ring.current(key)
        return None if known is None else known.limits

    def _is_foreign(self, scope: Scope) -> bool:
        """Whether the call comes from a page of another site."""
        if scope["type"] == "http" and scope["method"] in _SAFE_METHODS:
            return False  # it has no effect, and without CORS the page cannot read the response
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or origin in self._origins or "*" in self._origins:
            return False
        # Browsers send this header, which also works behind a proxy that changes the host.
        if headers.get("sec-fetch-site") == "same-origin":
            return False
        return not _host_of(origin) or _host_of(origin) != headers.get("host", "").lower()


def presented_key(scope: Scope) -> str | None:
    """Return the key that a caller presents; None if there is none, or more than one."""
    shown: list[str] = []
    for value in Headers(scope=scope).getlist("authorization"):
        scheme, _, key = value.partition(" ")
        # Another scheme counts as a key too, but as no valid one.
        shown.append(key.strip() if scheme.lower() == "bearer" else "")
    protocols: list[str] = scope.get("subprotocols", [])
    shown += [p.removeprefix(_SUBPROTOCOL) for p in protocols if p.startswith(_SUBPROTOCOL)]
    return shown[0] if len(shown) == 1 and shown[0] else None


def _is_free(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    path: str = scope["path"]
    return path in PROBES or path == _PAGE or path.startswith((_PAGE_FILES, _IMAGE_RESULTS))


def _caller(scope: Scope, usage: Usage) -> str:
    """Return who calls: a key, or without one a connection."""
    if usage.key_name is not None:
        return f"key {usage.key_name}"
    return ":".join(map(str, scope.get("client") or ()))


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _unauthorized(message: str) -> Response:
    body = error_body(message, "invalid_request_error", code="invalid_api_key")
    return JSONResponse(body, 401, {"www-authenticate": "Bearer"})


def _wrong_origin() -> Response:
    message = "pages of other sites may not call this server; --cors-origin lets one in"
    body = error_body(message, "invalid_request_error", code="origin_not_allowed")
    return JSONResponse(body, 403)
