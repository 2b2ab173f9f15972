"""Traces of calls in virtual time: what the spans say is what the client measured."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.model.capability import Capability
from izwi.request.request import Chunk, Reason, Request
from izwi.request.timing import TimedEvent, Timing
from izwi_api.serve.app import create_app
from izwi_api.services.answer_figures import TurnEvent
from izwi_api.settings import Settings
from izwi_api.telemetry import conventions
from izwi_api.telemetry.calls import CallObserver, current_call
from izwi_api.telemetry.engine_request import EngineRequest, wish_of
from tests.realtime.virtual import STEP_S, SteppedEngine, run_virtually
from tests.realtime.world import TTS, World, recorded

pytest.importorskip("opentelemetry.sdk")

import itertools

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from izwi_api.telemetry.tracing import Tracing

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "call-7"}
SECRET = "The garden is behind the house."


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


class Traced:
    """The spans of some calls."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.tracing = None
        self.total_s = {}

    def open(self):
        self.tracing = Tracing(SimpleSpanProcessor(self.exporter))
        return self.tracing

    @property
    def spans(self):
        return self.exporter.get_finished_spans()

    @property
    def roots(self):
        known = {span.context.span_id for span in self.spans}
        return [s for s in self.spans if s.parent is None or s.parent.span_id not in known]

    def children(self, span):
        found = [s for s in self.spans if s.parent and s.parent.span_id == span.context.span_id]
        return sorted(found, key=lambda s: (s.start_time, s.end_time))


def seconds(span):
    return (span.end_time - span.start_time) / 1e9


def ask(world, *calls, **settings):
    """Send requests one after the other; return their spans, responses and times."""
    traced, answers = Traced(), []

    async def main():
        engine = SteppedEngine(world.engine)
        kept = Settings(home=world.home, decode_workers=0, **settings)
        app = create_app(engine, world.registry, kept, tracing=traced.open())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for number, call in enumerate(calls):
                began_s = asyncio.get_running_loop().time()
                answers.append(await call(http))
                traced.total_s[number] = asyncio.get_running_loop().time() - began_s
        await engine.stop()

    run_virtually(main())
    return traced, answers


def speak(text=SECRET, **more):
    body = {"model": TTS, "voice": "amber", "input": text, "response_format": "pcm", "seed": 5}
    return lambda http: http.post("/v1/audio/speech", json=body | more, headers=CALLER)


def wav(samples, rate=24_000):
    pcm = to_s16le(np.asarray(samples, np.float32))
    return wav_header(rate, len(pcm)) + pcm


def transcribe():
    files = {"file": ("a.wav", io.BytesIO(wav(recorded("question"))), "audio/wav")}
    form = {"model": "izwi-tiny-asr"}
    return lambda http: http.post("/v1/audio/transcriptions", data=form, files=files)


def chat(text=SECRET, **more):
    body = {"model": "chat", "messages": [{"role": "user", "content": text}], "stream": True}
    return lambda http: http.post("/v1/chat/completions", json=body | more)


@pytest.fixture(scope="module")
def one_of_each(world):
    world.answer = "It leaves at seven."
    traced, answers = ask(world, speak(), transcribe(), chat())
    assert [answer.status_code for answer in answers] == [200, 200, 200], answers[1].text
    traced.answers = answers
    return traced


def test_each_call_has_one_span_with_the_names_of_the_conventions(one_of_each):
    speech, heard, chatted = one_of_each.roots
    assert speech.name == f"text_to_speech {TTS}"
    assert heard.name == "speech_to_text izwi-tiny-asr"
    assert chatted.name == "chat chat"
    assert {span.kind for span in (speech, heard, chatted)} == {SpanKind.SERVER}
    said = speech.attributes
    assert said["gen_ai.operation.name"] == "text_to_speech"
    assert said["gen_ai.provider.name"] == "izwi"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == TTS
    assert said["gen_ai.speech.voice"] == "amber"
    assert said["gen_ai.request.seed"] == 5
    assert said["gen_ai.output.type"] == "speech"
    assert list(said["gen_ai.response.finish_reasons"]) == ["stop"]
    assert said["http.route"] == "/v1/audio/speech"
    assert said["http.response.status_code"] == 200
    assert said["gen_ai.usage.input_tokens"] > 0
    num_samples = len(one_of_each.answers[0].content) // 2
    assert said["izwi.audio.output.seconds"] == pytest.approx(num_samples / 24_000)
    assert chatted.attributes["gen_ai.output.type"] == "text"
    assert chatted.attributes["gen_ai.usage.output_tokens"] == 4
    assert heard.attributes["gen_ai.operation.name"] == "speech_to_text"


def test_a_call_continues_its_callers_trace_and_others_start_their_own(one_of_each):
    speech, heard, chatted = one_of_each.roots
    assert f"{speech.context.trace_id:032x}" == TRACE
    assert f"{speech.parent.span_id:016x}" == PARENT
    assert speech.attributes["izwi.request.id"] == "call-7"
    assert one_of_each.answers[0].headers["x-request-id"] == "call-7"
    assert heard.parent is chatted.parent is None
    assert len({span.context.trace_id for span in (speech, heard, chatted)}) == 3


@pytest.mark.parametrize("number", [0, 1, 2], ids=["speech", "transcription", "chat"])
def test_phases_follow_each_other_and_sum_to_what_the_client_measured(one_of_each, number):
    root = one_of_each.roots[number]
    phases = one_of_each.children(root)
    names = [phase.name for phase in phases]
    assert names[:3] == ["prepare", "queue", "prefill"]
    assert names[-2:] == ["last_chunk", "send"]
    assert ("codec" in names) == (number == 0)
    assert "decode" in names
    for before, after in itertools.pairwise(phases):
        assert before.end_time == after.start_time
    measured_s = one_of_each.total_s[number]
    assert measured_s > 3 * STEP_S, "too short to compare"
    assert sum(map(seconds, phases)) == pytest.approx(measured_s, rel=0.1)
    assert seconds(root) == pytest.approx(measured_s, rel=0.1)
    assert max(phases, key=seconds).name == "decode"


def test_first_audio_is_an_event_of_speech_at_the_time_of_its_arrival(one_of_each):
    root = one_of_each.roots[0]
    (event,) = [event for event in root.events if event.name == "first_audio"]
    waited_s = (event.timestamp - root.start_time) / 1e9
    assert waited_s == pytest.approx(root.attributes["gen_ai.response.time_to_first_chunk"])
    assert 0 <= waited_s < seconds(root) / 2


def test_no_span_has_content(one_of_each):
    for span in one_of_each.spans:
        shown = span.to_json()
        assert "garden" not in shown
        assert "seven" not in shown


def test_pieces_of_a_text_are_spans_with_phases_of_their_own(world):
    traced, _ = ask(world, speak(f"{SECRET} [pause 1s] {SECRET}"))
    (root,) = traced.roots
    pieces = traced.children(root)
    assert [piece.name for piece in pieces] == ["piece", "piece"]
    assert "gen_ai.operation.name" not in pieces[0].attributes, "it would be counted twice"
    for piece in pieces:
        assert sum(map(seconds, traced.children(piece))) == pytest.approx(seconds(piece))
    used = [piece.attributes["gen_ai.usage.output_tokens"] for piece in pieces]
    assert root.attributes["gen_ai.usage.output_tokens"] == sum(used)


def test_refused_call_has_a_span_with_its_error_and_no_phases(world):
    traced, (refused, lost) = ask(
        world, speak(input=" "), lambda http: http.get("/v1/models", headers=CALLER)
    )
    assert refused.status_code == 400
    assert lost.status_code == 200
    (root,) = traced.roots  # a call that asks no model has none
    assert root.attributes["error.type"] == "400"
    assert root.status.status_code is StatusCode.UNSET, "the caller's mistake is not the server's"


def test_names_are_those_of_the_conventions_package():
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, hw_attributes
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics, hw_metrics
    from opentelemetry.semconv.attributes import error_attributes, http_attributes

    known = {
        value
        for module in (
            *(gen_ai_attributes, gen_ai_metrics, hw_attributes, hw_metrics),
            *(error_attributes, http_attributes),
        )
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {value for name, value in vars(conventions).items() if name.isupper()}
    assert len(ours) > 20
    drafts = {
        conventions.SPEECH_VOICE,
        conventions.SPEECH_INPUT_LANGUAGE,
        conventions.USAGE_OUTPUT_AUDIO_TOKENS,
        conventions.REALTIME_SESSION_ID,
        conventions.END_REASON,
    }
    own = {name for name in ours if name.startswith("izwi")}
    assert ours - own - drafts <= known
    assert not drafts & known, "the convention has it now: take it out of this list"


def test_stored_responses_of_one_conversation_share_its_id(world):
    async def respond(http, **more):
        answer = await http.post("/v1/responses", json={"model": "chat", "input": "Hello."} | more)
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["id"])
        return answer

    ids = []
    world.answer = "It leaves at seven."
    traced, _ = ask(
        world,
        respond,
        lambda http: respond(http, previous_response_id=ids[0]),
        lambda http: respond(http, previous_response_id=ids[0], store=False),
        respond,
        lambda http: respond(http, store=False),
    )
    known = [root.attributes.get("gen_ai.conversation.id") for root in traced.roots]
    assert known[0] == known[1] == known[2]
    assert known[0].startswith("conv_")
    assert known[3].startswith("conv_")
    assert known[3] != known[0]
    assert known[4] is None, "nothing can continue it"


def test_what_happened_between_phases_is_an_event_at_its_time():
    traced = Traced()
    call = CallObserver((traced.open(),), traces=True, clock=lambda: 30.0).open_call("call-1")
    call.started_s, call.route, call.status = 10.0, "/v1/audio/speech", 200
    request = EngineRequest(
        wish_of(Request("a", TTS, SimpleNamespace(num_positions=5)), Capability.SPEAK), 11.0
    )
    timing = Timing(0.1, 0.2, 0.3, 9.0, 9.5, is_resumed=True)
    happened = [
        (TimedEvent.PAUSED, 2.0, 0.0),
        (TimedEvent.RESUMED, 3.0, 0.0),
        (TimedEvent.PREEMPTED, 4.0, 0.0),
        (TimedEvent.UNDERRUN, 5.0, 0.25),
        (TimedEvent.MOVED, 6.0, 0.0),
    ]
    for event in happened:
        timing.note(*event)
    chunk = Chunk("a", np.zeros((1, 4), np.int64), np.zeros(100, np.float32), timing=timing)
    request.add_chunk(chunk, 1000, 12.0)
    request.end(20.5, Reason.STOP)
    call.requests.append(request)
    call.end()
    (root,) = traced.roots
    times = {one.name: (one.timestamp - root.start_time) / 1e9 for one in root.events}
    expected = {"paused": 3, "resumed": 4, "preempted": 5, "underrun": 6, "moved": 7}
    expected["first_audio"] = 2
    assert times == pytest.approx(expected)
    (underrun,) = [one for one in root.events if one.name == "underrun"]
    assert underrun.attributes["izwi.seconds"] == 0.25


@pytest.mark.parametrize(
    ("environ", "flags", "is_traced"),
    [
        ({}, "00", False),  # the caller's decision holds
        ({}, "03", True),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, "00", True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, "01", False),
    ],
)
def test_the_environments_sampler_chooses_calls(monkeypatch, environ, flags, is_traced):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    traced = Traced()
    parent = CALLER["traceparent"][:-2] + flags
    call = CallObserver((traced.open(),), traces=True).open_call("call-1", parent)
    call.route = "/v1/audio/speech"
    call.end()
    assert [span.name for span in traced.roots] == ["text_to_speech"] * is_traced
    for span in traced.spans:
        assert span.context.trace_id == span.parent.trace_id
        is_random = span.context.trace_flags == 0x03
        assert is_random == (flags == "03")


def test_a_request_that_moved_twice_has_the_events_of_all_its_engines():
    first, second = Timing(0.1, 0.2), Timing(0.5, 0.7, is_resumed=True)
    first.note(TimedEvent.PAUSED, 0.15)
    second.note(TimedEvent.UNDERRUN, 0.6, 0.25)
    third = Timing(0.5, 0.7, ended_s=2.0, is_resumed=True)
    third.note(TimedEvent.PREEMPTED, 1.0)
    prompt = SimpleNamespace(num_positions=5)
    request = EngineRequest(wish_of(Request("a", TTS, prompt), Capability.SPEAK), 11.0)
    for timing in (first, second.after_moves([3.0]), third.after_moves([3.0, 8.0])):
        request.add_chunk(Chunk("a", np.zeros((1, 4), np.int64), timing=timing), None, 12.0)
    assert request.timing.is_resumed
    assert (request.timing.admitted_s, request.timing.first_entry_s) == (0.1, 0.2)
    assert [(event.value, at_s, lasted_s) for event, at_s, lasted_s in request.timing.events] == [
        ("paused", 0.15, 0.0),
        ("moved", 3.0, 0.0),
        ("underrun", 3.6, 0.25),
        ("moved", 8.0, 0.0),
        ("preempted", 9.0, 0.0),
    ]


def test_a_request_that_moved_before_its_first_output_waited_until_the_next_engine_began_it():
    prompt = SimpleNamespace(num_positions=5)
    request = EngineRequest(wish_of(Request("a", TTS, prompt), Capability.SPEAK), 11.0)
    timing = Timing(0.5, 0.75, ended_s=1.0, is_resumed=True).after_moves([3.0])
    last = Chunk("a", np.zeros((1, 4), np.int64), reason=Reason.STOP, timing=timing)
    request.add_chunk(last, None, 15.5)
    assert timing.ended_s == 4.0
    assert [(phase.name, phase.seconds) for phase in request.phases()] == [
        ("queue", 3.5),
        ("prefill", 0.25),
        ("decode", 0.75),
    ]


LIVE = {
    "audio": {
        "input": {"turn_detection": {"type": "server_vad"}, "transcription": {"model": "whisper-1"}}
    }
}


def converse(world, script):
    """Hold a live session; return its spans, the phone, and the session's call."""
    traced = Traced()
    observer = CallObserver((traced.open(),), traces=True)
    call = observer.open_call("call-9", CALLER["traceparent"])
    token = current_call.set(call)
    try:
        phone = world.talk(script, session=LIVE)
    finally:
        current_call.reset(token)
    call.route = "/v1/realtime"
    call.end()
    return traced, phone


@pytest.fixture(scope="module")
def turn(world):
    """A question of two seconds and its answer."""
    world.answer = "It leaves at seven."
    times = SimpleNamespace()

    async def script(phone, _):
        await phone.hear(recorded("question"))
        await phone.until("response.created")
        await phone.until("response.output_audio.delta")
        times.audio_s = phone.of("response.output_audio.delta")[0].at_s
        await phone.until("response.done")
        await phone.be_silent(0.5)

    traced, phone = converse(world, script)
    stopped = phone.of("input_audio_buffer.speech_stopped")[-1]
    times.word_s = stopped.at_s - stopped.event["silence_ms"] / 1000
    times.done_s = phone.of("response.done")[-1].at_s
    return traced, times, phone


def test_live_turn_shows_hearing_thinking_and_speaking(turn):
    traced, times, phone = turn
    (root,) = traced.roots  # a span for each answer, none for the session
    assert root.name.startswith("realtime_inference")
    assert f"{root.context.trace_id:032x}" == TRACE
    parts = traced.children(root)
    assert [part.name for part in parts] == ["hearing", "thinking", "speaking"]
    for before, after in itertools.pairwise(parts):
        assert before.end_time == after.start_time
    hearing, thinking, speaking = parts
    assert phone.turns == [TurnEvent.ENDED]
    (spoken,) = [event for event in speaking.events if event.name == "first_audio"]
    first_s = (spoken.timestamp - speaking.start_time) / 1e9
    waited_s = seconds(hearing) + seconds(thinking) + first_s
    assert waited_s == pytest.approx(times.audio_s - times.word_s, rel=0.1)
    assert sum(map(seconds, parts)) == pytest.approx(times.done_s - times.word_s, rel=0.1)
    assert [event.name for event in hearing.events] == ["end_of_speech"]


def test_live_turn_shows_the_requests_of_each_part_with_their_phases(turn):
    traced, _, _ = turn
    hearing, thinking, speaking = traced.children(traced.roots[0])
    for part, name in (
        (hearing, "speech_to_text izwi-tiny-asr"),
        (thinking, "chat chat"),
        (speaking, f"text_to_speech {TTS}"),
    ):
        requests = traced.children(part)
        assert requests
        assert {request.name for request in requests} == {name}
        phases = [phase.name for phase in traced.children(requests[-1])]
        assert {"queue", "prefill"} <= set(phases)
        assert ("codec" in phases) == (part is speaking)


def test_live_answer_says_its_session_and_how_it_ended(turn):
    traced, _, phone = turn
    said = traced.roots[0].attributes
    created = phone.of("session.created")[0].event["session"]
    assert said["gen_ai.operation.name"] == "realtime_inference"
    assert said["gen_ai.realtime_session.id"] == created["id"]
    response = phone.of("response.done")[0].event["response"]
    assert said["gen_ai.conversation.id"] == response["conversation_id"]
    assert said["gen_ai.agent.invocation.end_reason"] == "completed"
    assert said["izwi.realtime.interrupted"] is False
    assert said["izwi.request.id"] == "call-9"


@pytest.mark.slow
def test_interrupted_answer_says_so(world):
    world.answer = "The train leaves at seven in the morning. It arrives at nine in the evening."

    async def script(phone, _):
        await phone.hear(recorded("question"))
        await phone.until("response.output_audio.delta")
        await phone.be_silent(0.5)
        await phone.hear(recorded("no-wait"))
        await phone.until("response.done")
        await phone.be_silent(0.2)

    traced, phone = converse(world, script)
    done = phone.of("response.done")[0].event["response"]
    assert done["status_details"]["reason"] == "turn_detected"
    root = traced.roots[0]
    assert root.attributes["izwi.realtime.interrupted"] is True
    assert root.attributes["gen_ai.agent.invocation.end_reason"] == "interrupted"
