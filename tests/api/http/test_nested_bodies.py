"""A deeply nested body is answered or refused at every depth, and never an internal error."""

from __future__ import annotations

import httpx
import pytest

from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, listening

# PARAMETERS stands for the schema of a function
BODIES = {
    "/v1/chat/completions": (
        '{"model": "chat", "messages": [{"role": "user", "content": "a"}], "tools": '
        '[{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]}'
    ),
    "/v1/responses": (
        '{"model": "chat", "input": "a", "tools": '
        '[{"type": "function", "name": "f", "parameters": PARAMETERS}]}'
    ),
}
OUTER = {"/v1/chat/completions": 4, "/v1/responses": 3}
MOST = 256
# up to beyond the interpreter's limit of recursion
DEPTHS = (1, 20, MOST + 1, 400, *range(860, 1000, 4), 2000, 50_000)


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    registry = FakeRegistry(chat=FakeChat())
    with (
        listening(create_app(FakeEngine(), registry, settings)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


def nested(depth, kind):
    begin, end = ('{"a": ', "}") if kind == "objects" else ("[", "]")
    inner = depth - 1 if kind == "arrays" else depth
    text = begin * inner + "1" + end * inner
    return text if kind == "objects" else f'{{"a": {text}}}'


@pytest.mark.parametrize("kind", ["objects", "arrays"])
@pytest.mark.parametrize("path", BODIES)
def test_each_depth_is_answered_or_refused(http, path, kind):
    for depth in DEPTHS:
        body = BODIES[path].replace("PARAMETERS", nested(depth, kind))
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == (200 if depth < MOST else 400), (depth, answer.text)
        if depth == MOST + 1:
            assert "nested too deeply" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
def test_the_deepest_body(http, path):
    for beyond in (0, 1):
        depth = MOST - OUTER[path] + beyond
        body = BODIES[path].replace("PARAMETERS", nested(depth, "objects"))
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == (400 if beyond else 200)


def test_a_long_flat_body_is_not_deep(http):
    message = {"role": "user", "content": "{[" * 1000}
    body = {"model": "chat", "messages": [message] * 300}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
