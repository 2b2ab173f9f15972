"""pytest plugin for openai-python's own tests: what their placeholders stand for at our server.

It is loaded into a pytest of its own, whose `tests` package is theirs, so it imports nothing of
ours. The environment tells it the server, a clip with speech in it, and where to write outcomes.
"""

from __future__ import annotations

import json
import os
from functools import wraps
from pathlib import Path

import httpcore2
import httpx
import openai
import pytest

BASE_URL = os.environ["TEST_API_BASE_URL"]
CLIP = Path(os.environ["IZWI_SUITE_CLIP"]).read_bytes()
OUTCOMES = Path(os.environ["IZWI_SUITE_OUTCOMES"])
PLACEHOLDER = b"Example data"
CONSENT = "/audio/voice_consents/consent_id"

COMPLETION = "/chat/completions/completion_id"

# Ids of the recording and of the answer that stand for "consent_id" and "completion_id" while a
# test runs.
consent_id = completion_id = None
num_sent = 0


def placed(value):
    """Return a request's files with every placeholder replaced by a clip."""
    if value == PLACEHOLDER:
        return CLIP
    if isinstance(value, dict):
        return {key: placed(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(placed(entry) for entry in value)
    return value


def replace_placeholders(options):
    files = placed(options.files)
    url = options.url.replace(CONSENT, f"/audio/voice_consents/{consent_id}")
    url = url.replace(COMPLETION, f"/chat/completions/{completion_id}")
    params = dict(options.params)
    if completion_id and params.get("after") == "after":
        params["after"] = f"{completion_id}-0" if url.endswith("/messages") else completion_id
    return options.model_copy(update={"files": files, "url": url, "params": params})


def pytest_configure(config):
    """Put ourselves before what every request of the SDK goes through."""
    prepare, prepare_async = openai.OpenAI._prepare_options, openai.AsyncOpenAI._prepare_options
    # Where a mock cuts in too, so what it answers is not counted.
    send = httpcore2.ConnectionPool.handle_request
    send_async = httpcore2.AsyncConnectionPool.handle_async_request

    def sync(self, options):
        return prepare(self, replace_placeholders(options))

    async def awaited(self, options):
        return await prepare_async(self, replace_placeholders(options))

    @wraps(send)  # mocks look at the name
    def counted(self, request):
        count()
        return send(self, request)

    @wraps(send_async)
    async def counted_async(self, request):
        count()
        return await send_async(self, request)

    openai.OpenAI._prepare_options, openai.AsyncOpenAI._prepare_options = sync, awaited
    httpcore2.ConnectionPool.handle_request = counted
    httpcore2.AsyncConnectionPool.handle_async_request = counted_async


def count():
    global num_sent
    num_sent += 1


@pytest.fixture(scope="session")
def http():
    with httpx.Client(base_url=BASE_URL, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def world(request, monkeypatch, http):
    """Make what a test says is there."""
    global consent_id, completion_id, num_sent
    module, name = request.node.path.stem, request.node.name
    completion_id = None
    if module == "test_speech":
        pass_to_server(monkeypatch)
    if module == "test_voices" and "path_params" not in name:
        http.delete("/audio/voices/x")
        if "delete" in name:
            files = {"audio_sample": ("a.wav", CLIP)}
            fields = {"name": "voice_id", "consent": "yes", "x_vector_only": "true"}
            http.post("/audio/voices", data=fields, files=files).raise_for_status()
    if module == "test_voice_consents" and "create" not in name and "path_params" not in name:
        answer = http.post(
            "/audio/voice_consents",
            data={"name": "somebody", "language": "en"},
            files={"recording": ("a.wav", CLIP)},
        )
        consent_id = answer.raise_for_status().json()["id"]
    if module in ("test_completions", "test_messages") and "create" not in name:
        completion_id = stored_completion(http)
    num_sent = 0


def stored_completion(http):
    """Store an answer. The SDK's type of stored messages knows those of assistants alone."""
    answer = http.post(
        "/chat/completions",
        json={
            "model": "gpt-6-astra",
            "messages": [{"role": "assistant", "content": "Hello."}],
            "store": True,
            "max_completion_tokens": 1,
        },
    )
    return answer.raise_for_status().json()["id"]


def pass_to_server(monkeypatch):
    """Let requests through that a test meant to answer itself."""
    from tests.respx2 import MockRouter

    monkeypatch.setattr(MockRouter, "__enter__", lambda router: router)
    monkeypatch.setattr(MockRouter, "__exit__", lambda *_: None)


def error_of(exception):
    """How a test failed, in terms that no rewording changes."""
    if isinstance(exception, openai.APIStatusError):
        return f"{exception.status_code} {exception.code} {exception.param}"
    return type(exception).__name__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.error = error_of(call.excinfo.value) if call.excinfo and report.failed else ""
    return report


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(getattr(crash, "message", None) or report.longrepr or "")
        line = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "error": report.error,
            "message": message[:1000],
            "num_sent": num_sent,
            "seconds": round(report.duration, 3),
        }
        with OUTCOMES.open("a") as file:
            file.write(json.dumps(line) + "\n")
