"""Requests that our OpenAPI schema allows or forbids get the responses that it describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, assume
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import allow_header_conformance, positive_data_acceptance

from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakeRegistry
from tests.api.one_connection import one_connection
from tests.examples import examples

# A schema cannot express what these accept: a clip that can be decoded, an SDP offer, a name in
# letters of any script, and how fields depend on each other (a tool's answer needs its call, a
# choice needs its tool). This server draws nothing.
UNTOLD = (
    "POST /generate",
    "POST /v1/images/generations",
    "POST /v1/images/edits",
    "GET /v1/images/results/{name}",
    "POST /v1/videos",
    "GET /v1/videos",
    "GET /v1/videos/{video_id}",
    "DELETE /v1/videos/{video_id}",
    "GET /v1/videos/{video_id}/content",
    "POST /v1/videos/generations",
    "POST /v1/chat/completions",
    "POST /v1/realtime/calls",
    "POST /v1/realtime/client_secrets",
    "POST /v1/responses",
    "POST /v1/audio/align",
    "POST /v1/audio/convert",
    "POST /v1/audio/voices",
    "POST /v1/audio/voices/check",
    "POST /v1/voice/identify",
    "POST /v1/voice/verify",
    "POST /v1/audio/voice_consents",
    "POST /v1/audio/voice_consents/{consent_id}",
)
# A model may be called org/load, and a voice check, so what is at these paths can be read, too:
# `Allow` says so. It says it of a video called generations, which there is none of.
READABLE = (
    "/v1/audio/voices/check",
    "/v1/models/pull",
    "/v1/models/{model_id}/load",
    "/v1/models/{model_id}/unload",
    "/v1/videos/generations",
)

schemathesis.serializer.alias("application/sdp", "text/plain")

app = create_app(FakeEngine(), FakeRegistry(), Settings(home=Path("/nowhere")))
schema = schemathesis.openapi.from_dict(app.openapi())


@examples(
    40,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def check(case, client, session):
    # The tool compares numbers as doubles, which have no integer next to 2^63.
    seed = case.body.get("seed") if isinstance(case.body, dict) else None
    assume(not isinstance(seed, int) or abs(abs(seed) - 2**63) > 4096)
    excluded = []
    if f"{case.method} {case.path}" in UNTOLD:
        excluded.append(positive_data_acceptance)
    if case.operation.path in READABLE:
        excluded.append(allow_header_conformance)
    case.call_and_validate(
        base_url=str(client.base_url),
        session=session,
        excluded_checks=excluded,
        timeout=60,
    )


@pytest.fixture(scope="module")
def session():
    with one_connection() as session:
        yield session


def operation(method: str, path: str) -> Callable[..., None]:
    """Make the test of one operation.

    `schema.parametrize()` would make all cases when tests are collected, in each worker. That takes
    longer than to collect all other tests.
    """

    def test(client, session):
        one = schema.include(method=method, path=path)
        (made,) = get_all_tests(schema=one, test_func=check, settings=None, given_kwargs=None)
        made.ok()[1](client=client, session=session)

    return test


# One function each: tests of one would share an id, and workers know tests by these.
for path, operations in app.openapi()["paths"].items():
    for method in operations:
        name = re.sub(r"\W+", "_", f"test_{method}{path}").rstrip("_")
        globals()[name] = operation(method.upper(), path)

# tests/api/routes/test_chat_schema.py sends the same to a chat model, which answers more of it
test_post_v1_chat_completions = pytest.mark.slow(globals()["test_post_v1_chat_completions"])
