"""While a chat model is loaded, its answers are shorter or a smaller model's, and say so."""

from __future__ import annotations

import httpx
import pytest

from izwi.errors import InvalidRequest, ModelNotFound
from izwi.fairness.callers import is_idle_work
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi_api.cli.serve import read_degradation
from izwi_api.serve.app import create_app
from izwi_api.services.models.degradation import degraded
from izwi_api.services.models.served import ServedModels
from izwi_api.settings import Degradation, Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech, listening

HOW = Degradation(waiting=4, max_tokens=40, smaller={"big": "small"})
LONG = "a" * 100
CHAT = {"model": "gpt", "messages": [{"role": "user", "content": LONG}]}


class Loaded(FakeEngine):
    """Keeps what was submitted; `waiting` requests wait for the big model."""

    waiting, requests = 0.0, ()

    @property
    def load(self):
        return {"big": {"waiting": self.waiting}, "small": {"waiting": 0.0}}

    def submit_all(self, requests):
        self.requests = tuple(requests)
        return super().submit_all(requests)


def registry():
    return FakeRegistry(big=FakeChat(), small=FakeChat(), tts=FakeSpeech())


def served(folder, engine, degradation):
    settings = Settings(home=folder, model_aliases={"gpt": "big"}, degradation=degradation)
    return create_app(engine, registry(), settings)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    engine = Loaded()
    app = served(tmp_path_factory.mktemp("home"), engine, HOW)
    with listening(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client, engine


def asked(engine):
    (request,) = engine.requests
    return request.model, request.max_entries


@pytest.mark.parametrize(
    ("waiting", "ran", "header"),
    [
        (0.0, ("big", 100), None),
        (3.0, ("big", 100), None),
        (4.0, ("small", 40), "model=small; max_tokens=40"),
        (8.0, ("small", 20), "model=small; max_tokens=20"),
        (800.0, ("small", 16), "model=small; max_tokens=16"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_more_that_wait_leave_fewer_tokens_of_a_smaller_model(world, waiting, ran, header, stream):
    client, engine = world
    engine.waiting = waiting
    answer = client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert answer.status_code == 200
    assert asked(engine) == ran
    assert answer.headers.get("x-izwi-degraded") == header


def test_responses_are_degraded_and_other_endpoints_are_not(world):
    client, engine = world
    engine.waiting = 4.0
    answer = client.post("/v1/responses", json={"model": "big", "input": LONG})
    assert answer.headers["x-izwi-degraded"] == "model=small; max_tokens=40"
    assert asked(engine) == ("small", 40)
    body = {"model": "tts", "input": "hello", "voice": "Ann", "response_format": "pcm"}
    assert "x-izwi-degraded" not in client.post("/v1/audio/speech", json=body).headers


def test_an_answer_that_is_short_anyway_stays_as_it_is(world):
    client, engine = world
    engine.waiting = 4.0
    answer = client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 5})
    assert asked(engine) == ("small", 5)
    assert answer.json()["choices"][0]["message"]["content"] == "a" * 5


def ask(*images):
    return ChatInput((ChatMessage(Role.USER, "look", images=images),))


def test_images_live_sessions_and_batches_keep_their_model():
    engine = Loaded()
    engine.waiting = 4.0
    models = ServedModels(engine, registry())
    big, live = models.chat("big"), models.live().chat("big")
    assert degraded(models, big, ask(), None) is big
    assert degraded(models, live, ask(), HOW) is live
    seeing = degraded(models, big, ask(object()), HOW)
    assert (seeing.name, seeing.max_entries) == ("big", 40)
    token = is_idle_work.set(True)
    assert degraded(models, big, ask(), HOW) is big
    is_idle_work.reset(token)
    assert degraded(models, big, ask(), HOW).name == "small"
    assert degraded(models, models.chat("small"), ask(), HOW).name == "small"


def test_models_that_are_not_there_or_do_not_chat_are_refused_at_the_start(tmp_path):
    with pytest.raises(ModelNotFound, match="'tiny'"):
        served(tmp_path, Loaded(), Degradation(1, 0, {"big": "tiny"}))
    with pytest.raises(InvalidRequest, match="something else"):
        served(tmp_path, Loaded(), Degradation(1, 0, {"big": "tts"}))


def test_the_options_belong_together():
    assert read_degradation(0, 0, []) is None
    assert read_degradation(4, 40, ["big=small"]) == HOW
    for wrong in ((4, 0, []), (0, 40, []), (0, 0, ["big=small"])):
        with pytest.raises(InvalidRequest, match="--degrade-at"):
            read_degradation(*wrong)
    for entry in ("big", "big=", "=small", "big=big"):
        with pytest.raises(InvalidRequest, match="--degrade-to"):
            read_degradation(4, 0, [entry])
    with pytest.raises(InvalidRequest, match="--degrade-to"):
        read_degradation(4, 0, ["big=small", "big=tiny"])
