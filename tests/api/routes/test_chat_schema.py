"""Bodies that our OpenAPI schema allows are answered; others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, assume
from schemathesis.pytest.lazy import get_all_tests

from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, listening
from tests.api.one_connection import one_connection
from tests.examples import examples

PATH = "/v1/chat/completions"
FAILS = ("\x01", "\x02", "PREPARE")  # what the fake takes for an order to fail

app = create_app(FakeEngine(0.0), FakeRegistry(chat=FakeChat()), Settings(home=Path("/nowhere")))
description = app.openapi()
schema = schemathesis.openapi.from_dict(description)
statuses: list[int] = []


@pytest.fixture(scope="module")
def session():
    with one_connection() as session:
        yield session


@pytest.fixture(scope="module")
def base_url():
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}"
    assert statuses.count(200) > 12
    assert statuses.count(400) > 12


NOT_FOR_TEXT = (
    "modalities",
    "audio",
    "audio_temperature",
    "audio_top_k",
    "speech_model",
    "transcription_model",
)


def fit_together(body):
    """Make keys fit each other, and a chat model, where the schema cannot express it."""
    body.pop("tool_choice", None)
    for key in NOT_FOR_TEXT:
        body.pop(key, None)
    if body.get("top_logprobs") is not None:
        body["logprobs"] = True
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        message.pop("tool_call_id", None)
        message.pop("audio", None)
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in ("input_audio", "image_url"):
                part.clear()
                part |= {"type": "text", "text": "hm"}
        if message.get("role") == "tool":
            message["tool_call_id"] = "c"
        if message.get("role") != "assistant":
            message.pop("tool_calls", None)
            message.pop("refusal", None)


@examples(
    40,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def check(case, base_url, session):
    if isinstance(case.body, dict):
        if isinstance(case.body.get("model"), str):
            case.body["model"] = "chat"
        # The tool compares numbers as doubles, which have no integer next to 2^63.
        seed = case.body.get("seed")
        assume(not isinstance(seed, int) or abs(abs(seed) - 2**63) > 4096)
        reported = str(case.body.get("messages"))
        assume(not any(order in reported or repr(order)[1:-1] in reported for order in FAILS))
        if case.meta.generation.mode.is_positive:
            fit_together(case.body)
    answer = case.call_and_validate(base_url=base_url, session=session, timeout=60)
    statuses.append(answer.status_code)


@pytest.mark.parametrize("method", description["paths"][PATH])
def test_what_the_schema_allows_is_answered(method, base_url, session):
    """`schema.parametrize()` would make all cases when tests are collected, in each worker."""
    one = schema.include(method=method.upper(), path=PATH)
    (made,) = get_all_tests(schema=one, test_func=check, settings=None, given_kwargs=None)
    made.ok()[1](base_url=base_url, session=session)
