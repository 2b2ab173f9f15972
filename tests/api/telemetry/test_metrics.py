"""Metrics of calls: names of the conventions, values of what was sent, few labels."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from izwi.errors import Overloaded
from izwi.inputs.speech import TranscriptionInput
from izwi.request.request import Chunk, Reason, Request
from izwi.request.timing import Timing
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.telemetry.calls import CallObserver
from izwi_api.telemetry.engine_request import EngineRequest, wish_of
from izwi_api.telemetry.metrics import CallMetrics
from izwi_api.usage.keys import add_key, digest_of
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import FakeChat, FakeEngine, FakePrompt, FakeRegistry, FakeSpeech

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OPEN = {"accept": "application/openmetrics-text; version=1.0.0"}


@pytest.fixture
async def http(tmp_path):
    engine, registry = FakeEngine(alive=True), FakeRegistry(tts=FakeSpeech(), chat=FakeChat())
    app = create_app(engine, registry, Settings(home=tmp_path))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def speech(text="A hidden word."):
    return {"model": "tts", "voice": "Ann", "input": text, "response_format": "pcm"}


def samples(text, parse=plain):
    return {
        (sample.name, *sorted(sample.labels.items())): sample
        for family in parse(text)
        for sample in family.samples
    }


def value(found, name, **labels):
    return found[name, *sorted(labels.items())].value


async def test_a_call_counts_under_the_names_of_the_conventions(http):
    answer = await http.post("/v1/audio/speech", json=speech())
    found = samples((await http.get("/metrics")).text)
    of = {"gen_ai_operation_name": "text_to_speech", "gen_ai_request_model": "tts"}
    assert value(found, "gen_ai_server_request_duration_seconds_count", **of, error_type="") == 1
    assert value(found, "gen_ai_server_time_to_first_token_seconds_count", **of) == 1
    assert value(found, "gen_ai_server_time_per_output_token_seconds_count", **of) == 1
    model = {"gen_ai_request_model": "tts"}
    assert value(found, "izwi_audio_time_to_first_audio_seconds_count", **model) == 1
    audio_s = len(answer.content) / 48_000
    assert value(found, "izwi_audio_duration_seconds_sum", **model) == pytest.approx(audio_s)
    assert value(found, "izwi_audio_streams_total", **model) == 1
    assert value(found, "izwi_tokens_total", **of, kind="output") == len(speech()["input"])
    assert value(found, "izwi_requests_ended_total", **of, reason="stop") == 1


async def test_values_have_their_trace_as_an_exemplar_in_openmetrics(http):
    await http.post("/v1/audio/speech", json=speech(), headers={"traceparent": TRACEPARENT})
    answer = await http.get("/metrics", headers=OPEN)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    exemplars = [
        sample.exemplar.labels
        for sample in samples(answer.text, open_metrics).values()
        if sample.name == "gen_ai_server_request_duration_seconds_bucket" and sample.exemplar
    ]
    assert exemplars == [{"trace_id": TRACEPARENT[3:35], "span_id": TRACEPARENT[36:52]}]
    assert "4bf92f35" not in (await http.get("/metrics")).text, "the old format has none"


async def test_callers_cannot_invent_labels(http):
    before = len(samples((await http.get("/metrics")).text))
    known = set()
    for number in range(3):
        headers = {"x-request-id": f"made-up-{number}"}
        await http.post("/v1/audio/speech", json=speech(), headers=headers)
        body = speech() | {"model": f"made-up-{number}"}
        await http.post("/v1/audio/speech", json=body, headers=headers)
        await http.get(f"/made-up-{number}")
        text = (await http.get("/metrics")).text
        assert "made-up" not in text
        known.add(len(samples(text)))
    assert len(known) == 1, "equal calls of others add series"
    assert known.pop() > before


def ended(*chunks, streams=True):
    """A request of which chunks arrived: pairs of a second and an array of samples."""
    request = Request("a", "tts", FakePrompt("speech", num_positions=5), streams=streams)
    noted = EngineRequest(wish_of(request, FakeSpeech.capabilities[0]), 0.0)
    for at_s, seconds in chunks:
        pcm = np.zeros(round(seconds * 1000), np.float32)
        noted.add_chunk(Chunk("a", np.zeros((1, 4), np.int64), pcm), 1000, at_s)
    last = Chunk("a", np.zeros((0, 4), np.int64), reason=Reason.STOP, timing=Timing(0.25, 0.75))
    noted.add_chunk(last, 1000, chunks[-1][0])
    return noted


def counted(*requests):
    registry = CollectorRegistry()
    metrics = CallMetrics(registry)
    for request in requests:
        metrics.request_ended(request)
    return registry.get_sample_value


def test_an_underrun_is_the_time_without_audio_of_a_listener_who_plays_at_once():
    request = ended((1.0, 0.5), (1.4, 0.5), (2.6, 0.5))  # played from 1.0 to 2.0, then from 2.6
    assert request.underrun_s == pytest.approx(0.6)
    read, model = counted(request, ended((1.0, 0.5), (1.51, 0.5))), {"gen_ai_request_model": "tts"}
    assert read("izwi_audio_underrun_seconds_total", model) == pytest.approx(0.61)
    shares = {
        limit: read("izwi_audio_continuity_ok_total", model | {"threshold_ms": limit})
        for limit in ("0", "20", "100")
    }
    assert shares == {"0": None, "20": 1, "100": 1}
    assert read("izwi_audio_chunk_interval_seconds_count", model) == 3


def test_audio_that_nobody_plays_meanwhile_has_no_underrun():
    read, model = counted(ended((1.0, 0.5), (9.0, 0.5), streams=False)), "tts"
    assert read("izwi_audio_streams_total", {"gen_ai_request_model": model}) is None
    assert read("izwi_audio_duration_seconds_sum", {"gen_ai_request_model": model}) == 1.0


def test_queue_prefill_and_real_time_factor_are_those_of_the_engine_and_the_caller():
    read = counted(ended((1.0, 0.5), (2.0, 3.5)))
    of = {"gen_ai_operation_name": "text_to_speech", "gen_ai_request_model": "tts"}
    assert read("izwi_request_queue_seconds_sum", of) == 0.25
    assert read("izwi_request_prefill_seconds_sum", of) == 0.5
    model = {"gen_ai_request_model": "tts"}
    assert read("izwi_audio_real_time_factor_sum", model) == pytest.approx(2.0 / 4.0)


def test_a_refused_request_counts_with_its_error_and_without_times():
    request = Request("a", "tts", FakePrompt("speech"))
    noted = EngineRequest(wish_of(request, FakeSpeech.capabilities[0]), 0.0)
    failed = Chunk("a", np.zeros((0, 4), np.int64), reason=Reason.ERROR, error=Overloaded("full"))
    noted.add_chunk(failed, 1000, 0.1)
    registry = CollectorRegistry()
    metrics = CallMetrics(registry)
    call = CallObserver([metrics]).open_call("a")
    call.route, call.status = "/v1/audio/speech", 503
    call.requests.append(noted)
    metrics.request_ended(noted)
    call.end()
    of = {"gen_ai_operation_name": "text_to_speech", "gen_ai_request_model": "tts"}
    read = registry.get_sample_value
    assert read("izwi_requests_ended_total", of | {"reason": "error"}) == 1
    name = "gen_ai_server_request_duration_seconds_count"
    assert read(name, of | {"error_type": Overloaded.code}) == 1
    assert read("gen_ai_server_time_to_first_token_seconds_count", of) is None
    assert read("izwi_request_queue_seconds_count", of) is None


def heard_by(key, number=0):
    """A transcription of two seconds that a caller with a key asked for."""
    ask = TranscriptionInput(np.zeros(32_000, np.float32))
    request = Request(f"r-{number}", "asr", FakePrompt("listen", num_positions=7), ask=ask)
    noted = EngineRequest(wish_of(request, FakeSpeech.capabilities[0]), 0.0, key)
    noted.add_chunk(Chunk("a", np.zeros((4, 1), np.int64), reason=Reason.STOP), None, 0.1)
    return noted


def test_tokens_and_audio_are_counted_for_each_model_and_key():
    spoken = ended((1.0, 0.5), (1.4, 0.5))
    spoken.key = "0a1b2c3d"
    read = counted(spoken, heard_by("0a1b2c3d"), heard_by("0a1b2c3d"), heard_by(""))
    of = {"gen_ai_request_model": "asr", "key": "0a1b2c3d"}
    assert read("izwi_key_audio_seconds_total", of | {"kind": "heard"}) == 4.0
    assert read("izwi_key_tokens_total", of | {"kind": "input"}) == 14
    assert read("izwi_key_tokens_total", of | {"kind": "output"}) == 8
    assert read("izwi_key_audio_seconds_total", of | {"key": "", "kind": "heard"}) == 2.0
    of["gen_ai_request_model"] = "tts"
    assert read("izwi_key_audio_seconds_total", of | {"kind": "spoken"}) == 1.0
    assert read("izwi_key_tokens_total", of | {"kind": "output"}) == 2


def test_keys_beyond_a_number_count_as_one():
    read = counted(*(heard_by(f"{number:08x}", number) for number in range(103)), heard_by("0" * 8))
    of = {"gen_ai_request_model": "asr", "kind": "heard"}
    assert read("izwi_key_audio_seconds_total", of | {"key": "other"}) == 3 * 2.0
    assert read("izwi_key_audio_seconds_total", of | {"key": f"{99:08x}"}) == 2.0
    assert read("izwi_key_audio_seconds_total", of | {"key": f"{100:08x}"}) is None
    assert read("izwi_key_audio_seconds_total", of | {"key": "0" * 8}) == 4.0


def test_a_request_that_another_engine_resumed_counts_as_moved():
    request = ended((1.0, 0.5))
    request.timing.is_resumed = True
    read = counted(request, ended((1.0, 0.5)))
    assert read("izwi_requests_moved_total", {"gen_ai_request_model": "tts"}) == 1


async def test_the_label_of_a_key_is_the_beginning_of_its_digest_and_not_its_name(tmp_path):
    keys = tmp_path / "keys.toml"
    secret = add_key(keys, "acme", KeyLimits())
    access = Access(api_keys_file=keys)
    registry = FakeRegistry(tts=FakeSpeech())
    app = create_app(FakeEngine(alive=True), registry, Settings(home=tmp_path, access=access))
    transport = httpx.ASGITransport(app)
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers
    ) as http:
        assert (await http.post("/v1/audio/speech", json=speech())).status_code == 200
        text = (await http.get("/metrics")).text
    of = {"gen_ai_request_model": "tts", "key": digest_of(secret).hex()[:8], "kind": "output"}
    assert value(samples(text), "izwi_key_tokens_total", **of) == len(speech()["input"])
    assert "acme" not in text
