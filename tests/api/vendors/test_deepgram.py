"""Deepgram's API over the wire, as its documentation says; tests/clients has its own SDK."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from izwi.audio.decode import decode_audio
from izwi.audio.g711 import encode_g711
from izwi_api.realtime.protocol.formats import WireFormat
from izwi_api.sessions.loop_turns import LoopTurns
from izwi_api.vendors.deepgram.listen_live import (
    ListenMessages,
    LiveOptions,
    LongSilence,
    Speech,
    SpeechEnded,
    SpeechStarted,
    Utterances,
)
from izwi_api.vendors.translated_wire import Pause, TranslatedWire
from tests.api.conftest import FRAME
from tests.api.vendors.streaming import FakeStreaming

SOUNDS = Path(__file__).parents[2] / "realtime" / "sounds"
LISTEN, SPEAK = "/deepgram/v1/listen", "/deepgram/v1/speak"
LIVE = "encoding=linear16&sample_rate=16000"


@pytest.fixture
def key(vendors):
    return {"authorization": f"Token {vendors.keys['free']}"}


@pytest.fixture(scope="module")
def spoken():
    """2.4 s of speech, then silence: (n,) float32 at 16 kHz."""
    samples, rate = soundfile.read(SOUNDS / "about-bus.opus", dtype="float32")
    samples = soxr.resample(samples, rate, 16_000)[: round(2.4 * 16_000)]

    def make(silence_s=0.0):
        return np.concatenate([samples, np.zeros(int(16_000 * silence_s), np.float32)])

    return make


def pcm(samples):
    return (samples * 32767).astype("<i2").tobytes()


# -- transcription of files ----------------------------------------------------------------------
def test_a_file_is_transcribed(http, key, tone_wav, monkeypatch):
    query = {"model": "nova-3", "smart_format": "true", "utterances": "true", "keyterm": "izwi"}
    answer = http.post(LISTEN, content=tone_wav(2.0), params=query, headers=key)
    assert answer.status_code == 200, answer.text
    heard = answer.json()
    assert heard["metadata"]["duration"] == pytest.approx(2.0)
    (channel,) = heard["results"]["channels"]
    (alternative,) = channel["alternatives"]
    assert (alternative["transcript"], channel["detected_language"]) == ("word word izwi", "en")
    assert [word["start"] for word in alternative["words"]] == [0.0, 1.0, 2.0]
    (utterance,) = heard["results"]["utterances"]
    assert (utterance["transcript"], utterance["end"]) == ("word word izwi", 2.0)
    assert "x-izwi-ignored" not in answer.headers
    monkeypatch.setattr(FakeStreaming, "follows_context", False)
    answer = http.post(LISTEN, content=tone_wav(2.0), params=query, headers=key)
    assert answer.headers["x-izwi-ignored"] == "keyterm"


@pytest.mark.parametrize("encoding", ["linear16", "mulaw"])
def test_bare_samples_are_transcribed(http, key, spoken, encoding):
    samples = spoken()[: 2 * 16_000 : 2]
    content = pcm(samples) if encoding == "linear16" else encode_g711(samples, "mu")
    query = {"encoding": encoding, "sample_rate": 8000}
    answer = http.post(LISTEN, content=content, params=query, headers=key).json()
    assert answer["metadata"]["duration"] == pytest.approx(2.0)
    assert answer["results"]["channels"][0]["alternatives"][0]["transcript"] == "word word"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"model": "other"}, 404, "MODEL_NOT_FOUND"),
        ({"callback": "https://a.example"}, 400, "INVALID_REQUEST"),
        ({"multichannel": "true"}, 400, "INVALID_REQUEST"),
        ({"encoding": "g729"}, 400, "INVALID_REQUEST"),
        ({"encoding": "linear16", "sample_rate": "x"}, 400, "INVALID_REQUEST"),
        ({}, 400, "Bad Request"),
    ],
)
def test_errors_have_their_format(http, key, query, status, code):
    answer = http.post(LISTEN, content=b"no audio", params=query, headers=key)
    assert (answer.status_code, answer.json()["err_code"]) == (status, code), answer.text
    assert answer.json()["err_msg"]
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_a_url_is_fetched_from_hosts_of_the_operator_alone(http, key):
    answer = http.post(LISTEN, json={"url": "https://a.example/a.wav"}, headers=key)
    assert answer.status_code == 400
    assert "--reference-host" in answer.json()["err_msg"]


@pytest.mark.parametrize("shown", ["Token wrong", "Basic eDp4", None])
def test_a_wrong_key_is_refused(http, tone_wav, shown):
    headers = {} if shown is None else {"authorization": shown}
    answer = http.post(LISTEN, content=tone_wav(1.0), headers=headers)
    assert (answer.status_code, answer.json()["err_code"]) == (401, "INVALID_AUTH")


def test_a_temporary_token_is_a_key_as_well(http, vendors, tone_wav):
    headers = {"authorization": f"Bearer {vendors.keys['free']}"}
    assert http.post(LISTEN, content=tone_wav(1.0), headers=headers).status_code == 200


def test_a_quota_holds_and_the_audit_names_the_key(http, vendors, tone_wav):
    poor = {"authorization": f"Token {vendors.keys['poor']}"}
    answer = http.post(LISTEN, content=tone_wav(2.0), headers=poor)
    assert (answer.status_code, answer.json()["err_code"]) == (429, "ASR_PAYMENT_REQUIRED")
    assert vendors.audited("poor", LISTEN)["status"] == 429


# -- live transcription --------------------------------------------------------------------------
def listen(vendors, query, key="free"):
    head = {"authorization": f"Token {vendors.keys[key]}"}
    return vendors.connect(f"{LISTEN}?{query}", head)


def until_closed(socket):
    received = []
    try:
        while True:
            received.append(json.loads(socket.recv(60)))
    except ConnectionClosed:
        return received, socket.close_code


def until(socket, is_last):
    received = []
    while not received or not is_last(received[-1]):
        received.append(json.loads(socket.recv(60)))
    return received


def tell(socket, kind):
    socket.send(json.dumps({"type": kind}))


def text_of(result):
    return result["channel"]["alternatives"][0]["transcript"]


def test_an_utterance_ends_in_silence_and_the_next_one_begins_later(vendors, spoken):
    query = f"{LIVE}&interim_results=true&vad_events=true&utterance_end_ms=1000&model=nova-2"
    with listen(vendors, query) as socket:
        tell(socket, "KeepAlive")
        received = []
        for _ in range(2):
            data = pcm(spoken())
            for start in range(0, len(data), 6400):
                socket.send(data[start : start + 6400])
            received += until(socket, lambda message: message.get("is_final") is False)
            socket.send(pcm(np.zeros(24_000)))
            received += until(socket, lambda message: message["type"] == "UtteranceEnd")
        tell(socket, "CloseStream")
        rest, code = until_closed(socket)
    received += rest
    kinds = [message["type"] for message in received]
    assert (kinds.count("SpeechStarted"), kinds.count("UtteranceEnd")) == (2, 2)
    results = [message for message in received if message["type"] == "Results"]
    final = [result for result in results if result["is_final"]]
    assert [result["speech_final"] for result in final] == [True, True]
    assert [text_of(result) for result in final] == ["word word word"] * 2
    assert 0 <= final[0]["start"] < 0.3
    assert final[1]["start"] == pytest.approx(final[0]["start"] + 3.9, abs=0.3)
    first_end = final[0]["start"] + final[0]["duration"]
    words = final[0]["channel"]["alternatives"][0]["words"]
    assert words[0]["start"] == final[0]["start"]
    assert words[-1]["end"] == pytest.approx(first_end, abs=0.01)
    ends = [message["last_word_end"] for message in received if message["type"] == "UtteranceEnd"]
    assert ends == [pytest.approx(2.3, abs=0.3), pytest.approx(6.2, abs=0.3)]
    assert kinds.index("UtteranceEnd") > kinds.index("Results")
    interim = [text_of(result) for result in results if not result["is_final"]]
    assert set(interim) <= {"word", "word word"}
    assert (received[-1]["type"], code) == ("Metadata", 1000)
    assert received[-1]["duration"] == pytest.approx(7.8, abs=0.05)


def test_without_interim_results_only_final_ones_come(vendors, spoken):
    with listen(vendors, f"{LIVE}&keyterm=izwi&language=en-US") as socket:
        socket.send(pcm(spoken(0.5)))
        received = until(socket, lambda message: message.get("speech_final"))
    assert [message["is_final"] for message in received] == [True]
    assert vendors.hearing.contexts[-1] == ("en", "izwi")


def test_finalize_brings_what_was_heard_so_far(vendors, spoken):
    with listen(vendors, LIVE) as socket:
        socket.send(pcm(spoken()))
        tell(socket, "Finalize")
        (result,) = until(socket, lambda message: message["type"] == "Results")
        assert (result["from_finalize"], result["speech_final"]) == (True, False)
        assert text_of(result) == "word word word"
        tell(socket, "Finalize")  # nothing is left
        (result,) = until(socket, lambda message: message["type"] == "Results")
        assert (result["from_finalize"], text_of(result)) == (True, "")


def test_without_endpointing_all_audio_is_one_utterance(vendors, spoken):
    with listen(vendors, "encoding=mulaw&sample_rate=8000&endpointing=false") as socket:
        socket.send(encode_g711(spoken(0.6)[::2], "mu"))
        tell(socket, "CloseStream")
        received, _ = until_closed(socket)
    assert [message["type"] for message in received] == ["Results", "Metadata"]
    assert text_of(received[0]) == " ".join(["word"] * 4)
    assert (received[0]["start"], received[0]["speech_final"]) == (0.0, False)
    assert received[0]["duration"] == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize("sent", ["nonsense", '{"type": "Other"}', "[]"])
def test_an_unknown_message_closes_the_socket(vendors, sent):
    with listen(vendors, LIVE) as socket:
        socket.send(sent)
        received, code = until_closed(socket)
    assert (received[-1]["type"], received[-1]["code"], code) == ("Error", "DATA-0000", 1008)


def test_live_audio_over_the_quota_closes_the_socket(vendors, spoken):
    with listen(vendors, LIVE, "poor") as socket:
        socket.send(pcm(spoken(0.5)))
        received, code = until_closed(socket)
    assert (received[-1]["code"], code) == ("insufficient_quota", 1008)


@pytest.mark.parametrize(
    ("query", "key", "status"),
    [("", "free", 400), (LIVE, "wrong", 401), (f"{LIVE}&model=x", "free", 404)],
)
def test_a_handshake_is_refused_in_their_format(vendors, query, key, status):
    head = {"authorization": f"Token {vendors.keys.get(key, key)}"}
    with pytest.raises(InvalidStatus) as caught:
        vendors.connect(f"{LISTEN}?{query}", head)
    assert caught.value.response.status_code == status
    assert json.loads(caught.value.response.body)["err_msg"]


def test_a_browser_presents_its_key_as_a_subprotocol(vendors):
    url = f"{vendors.url.replace('http', 'ws')}{LISTEN}?{LIVE}"
    with connect(url, subprotocols=["token", vendors.keys["free"]], proxy=None) as socket:
        assert socket.subprotocol == "token"


def events_of(samples, **options):
    plain = {"model": "", "wire": WireFormat("", 16_000, 2), "config": {}, "interim": False}
    plain |= {"endpointing_ms": 300, "utterance_end_ms": None, "vad_events": False}
    utterances = Utterances(LiveOptions(**plain | options))
    events = [
        event
        for start in range(0, len(samples), 800)
        for event in utterances.write(samples[start : start + 800])
    ]
    return utterances, events


def test_a_long_message_is_cut_by_pauses(monkeypatch):
    plain = {"model": "", "config": {}, "interim": False, "endpointing_ms": 300}
    plain |= {"utterance_end_ms": None, "vad_events": False}
    messages = ListenMessages(LiveOptions(**plain, wire=WireFormat("", 8000, 1, "mu")))
    sizes, write = [], messages._utterances.write

    def counted(samples):
        sizes.append(len(samples))
        return write(samples)

    monkeypatch.setattr(messages._utterances, "write", counted)
    given = list(messages.incoming(b"\xff" * 80_000))
    assert json.loads(given.pop(0)) == {}
    assert given == [Pause()] * 99
    assert len(sizes) == 100
    assert max(sizes) <= 16_000 // 9


class _Socket:
    async def receive(self):
        return b"\xff" * 16_000


async def test_pauses_let_others_run():
    class Translation:
        failure = None

        def greeting(self):
            return ()

        def incoming(self, message):
            yield from [Pause()] * 20
            yield message

    wire = TranslatedWire(_Socket(), Translation(), LoopTurns())
    receiving, num_turns = asyncio.create_task(wire.receive()), 0
    while not receiving.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns > 20


def test_an_utterance_has_audio_from_before_its_speech(spoken):
    samples = np.concatenate([np.zeros(32_000, np.float32), spoken(1.0)])
    _, events = events_of(samples)
    speech = [event for event in events if isinstance(event, Speech)]
    (started,) = [event for event in events if isinstance(event, SpeechStarted)]
    assert 1900 <= started.start_ms <= 2200
    assert started.start_ms - 300 <= speech[0].start_ms < started.start_ms
    num_samples = sum(len(event.samples) for event in speech)
    assert num_samples == pytest.approx(16_000 * 2.8, abs=4800)
    assert [event for event in events if isinstance(event, SpeechEnded)] == [SpeechEnded(True)]


def test_a_longer_pause_may_be_asked_for(spoken):
    samples = np.concatenate([spoken(0.6), spoken(2.0)])
    _, events = events_of(samples, endpointing_ms=1000, utterance_end_ms=1500)
    kinds = [type(event) for event in events if not isinstance(event, Speech)]
    assert kinds == [SpeechStarted, SpeechEnded, LongSilence]


def test_silence_is_not_transcribed():
    utterances, events = events_of(np.zeros(32_000, np.float32))
    assert not events
    assert utterances.finish() is None
    assert utterances.end_ms == 2000


# -- speech --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("query", "num_bytes"),
    [
        ({"encoding": "linear16", "container": "none", "sample_rate": 12_000}, 5 * FRAME),
        ({"encoding": "mulaw", "container": "none"}, 5 * FRAME // 3),
    ],
)
def test_bare_samples_are_spoken(http, key, query, num_bytes):
    answer = http.post(SPEAK, json={"text": "Hello"}, params=query, headers=key)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == num_bytes
    assert (answer.headers["dg-model-name"], answer.headers["dg-char-count"]) == ("tts", "5")


@pytest.mark.parametrize(
    "query", [{}, {"encoding": "linear16", "sample_rate": 16_000}, {"encoding": "flac"}]
)
def test_files_are_spoken(http, key, query):
    answer = http.post(SPEAK, json={"text": "Hello"}, params=query, headers=key)
    assert len(decode_audio(answer.content, 8000)) / 8000 == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize(
    ("model", "voice"),
    [
        ("aura-2-thalia-en", "Bob"),
        ("aura-asteria-en", "Ann"),
        ("aura-2-bob-en", "Bob"),
        ("tts", "Ann"),
    ],
)
def test_a_model_name_selects_a_voice(http, key, vendors, model, voice):
    answer = http.post(SPEAK, json={"text": "Hello"}, params={"model": model}, headers=key)
    assert answer.status_code == 200, answer.text
    assert vendors.speech.asked[-1].voice == voice


@pytest.mark.parametrize(
    ("query", "text", "status"),
    [
        ({"model": "other"}, "Hi", 404),
        ({"encoding": "mulaw"}, "Hi", 400),  # in a container
        ({"encoding": "ilbc"}, "Hi", 400),
        ({"speed": "9"}, "Hi", 400),
        ({"callback": "https://a.example"}, "Hi", 400),
        ({}, " ", 400),
    ],
)
def test_what_cannot_be_spoken_is_refused(http, key, query, text, status):
    answer = http.post(SPEAK, json={"text": text}, params=query, headers=key)
    assert answer.status_code == status
    assert answer.json()["err_msg"]


def speak(vendors, query="", key="free"):
    return vendors.connect(f"{SPEAK}?{query}", {"authorization": f"Token {vendors.keys[key]}"})


def spoken_until(socket, kind):
    """Number of bytes of audio up to a message, and the message."""
    num_bytes = 0
    while True:
        message = socket.recv(60)
        if isinstance(message, bytes):
            num_bytes += len(message)
        elif json.loads(message)["type"] == kind:
            return num_bytes, json.loads(message)


def say(socket, text):
    socket.send(json.dumps({"type": "Speak", "text": text}))


def test_text_is_spoken_until_it_is_flushed(vendors):
    with speak(vendors, "encoding=mulaw&sample_rate=8000&model=aura-2-thalia-en") as socket:
        assert json.loads(socket.recv(60))["model_name"] == "tts"
        for number, text in enumerate(("Hello ", "Hello there ")):
            say(socket, text)
            tell(socket, "Flush")
            num_bytes, flushed = spoken_until(socket, "Flushed")
            assert (num_bytes, flushed["sequence_id"]) == (len(text) * FRAME // 3, number)
        tell(socket, "Flush")  # nothing is left
        assert spoken_until(socket, "Flushed")[1]["sequence_id"] == 2
        say(socket, "Bye ")
        tell(socket, "Close")
        with pytest.raises(ConnectionClosed):
            spoken_until(socket, "Nothing")
        assert socket.close_code == 1000


def test_clear_stops_what_is_spoken(vendors):
    with speak(vendors) as socket:
        tell(socket, "Clear")
        assert spoken_until(socket, "Cleared")[1]["sequence_id"] == 0
        say(socket, "Hello " * 100)
        tell(socket, "Flush")
        say(socket, "Another ")
        tell(socket, "Clear")
        assert spoken_until(socket, "Cleared")[1]["sequence_id"] == 1
        say(socket, "Hi ")
        tell(socket, "Flush")
        num_bytes, flushed = spoken_until(socket, "Flushed")
        assert (num_bytes, flushed["sequence_id"]) == (3 * FRAME * 2, 0)


def test_spoken_text_over_the_quota_closes_the_socket(vendors):
    with speak(vendors, key="poor") as socket:
        say(socket, "Hello ")
        assert spoken_until(socket, "Error")[1]["err_code"] == "insufficient_quota"
        with pytest.raises(ConnectionClosed):
            socket.recv(60)
        assert socket.close_code == 1008


def test_live_words_to_expect_that_have_no_effect_are_named(vendors, key, monkeypatch):
    path = f"{LISTEN}?{LIVE}&keyterm=izwi"
    with vendors.connect(path, key) as socket:
        assert "x-izwi-ignored" not in socket.response.headers
    monkeypatch.setattr(FakeStreaming, "follows_context", False)
    with vendors.connect(path, key) as socket:
        assert socket.response.headers["x-izwi-ignored"] == "keyterm"
