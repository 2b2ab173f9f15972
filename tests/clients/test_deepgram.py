"""Deepgram's own SDK, unmodified: `pip install .[clients]`."""

from __future__ import annotations

import asyncio
import threading

import httpx
import numpy as np
import pytest

from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import wait_for
from tests.api.served import served

pytest.importorskip("deepgram", reason="deepgram-sdk is not installed")
from deepgram import AsyncDeepgramClient, DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text

# it imports old names of websockets
pytestmark = pytest.mark.filterwarnings("ignore:.*websockets.*:DeprecationWarning")
SENTENCE = "The house is near the river, and the garden is behind the house."
MODELS = ("izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner")
RATE = 16_000


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "home").mkdir()
    file = folder / "home" / "keys.toml"
    poor = KeyLimits(characters_per_day=10, audio_seconds_per_day=1)
    keys = {"free": add_key(file, "free", KeyLimits()), "poor": add_key(file, "poor", poor)}
    options = [f"--model={name}" for name in MODELS]
    with served(folder, *options, "--api", "deepgram", "--api-keys", str(file)) as server:
        http, ws = f"{server.url}/deepgram", f"{server.url.replace('http', 'ws')}/deepgram"
        where = DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
        yield where, keys


@pytest.fixture
def opened(world):
    where, keys = world
    with httpx.Client(timeout=90) as http:

        def make(key="free"):
            return DeepgramClient(api_key=keys.get(key, key), environment=where, httpx_client=http)

        yield make


@pytest.fixture
def client(opened):
    return opened()


@pytest.fixture(scope="module")
def pcm(world):
    """The sentence as 16-bit PCM at 16 kHz."""
    where, keys = world
    with httpx.Client(timeout=90) as http:
        made = DeepgramClient(api_key=keys["free"], environment=where, httpx_client=http)
        ask = {"encoding": "linear16", "container": "none", "sample_rate": RATE}
        return b"".join(
            made.speak.v1.audio.generate(text=SENTENCE, model="aura-2-thalia-en", **ask)
        )


def words_of(text):
    return set("".join(c for c in text.lower() if c.isalnum() or c == " ").split())


def is_the_sentence(text):
    return len(words_of(text) & words_of(SENTENCE)) >= len(words_of(SENTENCE)) - 1


def test_a_spoken_file_is_transcribed(client):
    mp3 = b"".join(client.speak.v1.audio.generate(text=SENTENCE))
    heard = client.listen.v1.media.transcribe_file(
        request=mp3, model="nova-3", smart_format=True, utterances=True
    )
    (channel,) = heard.results.channels
    (alternative,) = channel.alternatives
    assert is_the_sentence(alternative.transcript)
    assert channel.detected_language == "en"
    assert 2 < heard.metadata.duration < 8
    starts = [word.start for word in alternative.words]
    assert starts == sorted(starts)
    assert len(starts) == len(alternative.transcript.split())
    assert is_the_sentence(heard.results.utterances[0].transcript)


def test_bare_samples_are_transcribed(client, pcm):
    heard = client.listen.v1.media.transcribe_file(
        request=pcm,
        encoding="linear16",
        request_options={"additional_query_parameters": {"sample_rate": RATE}},
    )
    assert is_the_sentence(heard.results.channels[0].alternatives[0].transcript)


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [("wrong", 401, "INVALID_AUTH"), ("poor", 429, "ASR_PAYMENT_REQUIRED")],
)
def test_errors_say_what_is_wrong(opened, pcm, key, status, code):
    for call in (
        lambda made: b"".join(made.speak.v1.audio.generate(text=SENTENCE)),
        lambda made: made.listen.v1.media.transcribe_file(
            request=pcm,
            encoding="linear16",
            request_options={"additional_query_parameters": {"sample_rate": RATE}},
        ),
    ):
        with pytest.raises(ApiError) as caught:
            call(opened(key))
        assert (caught.value.status_code, caught.value.body["err_code"]) == (status, code)


def test_live_audio_is_transcribed(client, pcm):
    """Two utterances, each ended by silence, as a telephone sends them."""
    messages = []
    with client.listen.v1.connect(
        model="nova-3",
        encoding="linear16",
        sample_rate=RATE,
        interim_results=True,
        endpointing=400,
        utterance_end_ms=1000,
        vad_events=True,
    ) as live:
        live.on(EventType.MESSAGE, messages.append)
        reading = threading.Thread(target=live.start_listening)
        reading.start()
        live.send_keep_alive()
        audio = (pcm + bytes(2 * RATE * 2)) * 2
        for start in range(0, len(audio), 3200):
            live.send_media(audio[start : start + 3200])
            if start == 12 * 3200:  # within the first words
                # later audio would overtake the text of the utterance so far
                wait_for(lambda: any(message.type == "Results" for message in messages))
        live.send_close_stream()
        reading.join(120)
        assert not reading.is_alive()
    kinds = [message.type for message in messages]
    results = [message for message in messages if message.type == "Results"]
    ended = [message for message in results if message.speech_final]
    assert len(ended) >= 2
    assert any(not message.is_final for message in results)
    final = " ".join(m.channel.alternatives[0].transcript for m in results if m.is_final)
    assert is_the_sentence(final)
    assert final.lower().count("river") == 2
    assert kinds.count("UtteranceEnd") == 2
    assert kinds.count("SpeechStarted") >= 2
    assert kinds[-1] == "Metadata"
    assert messages[-1].duration == pytest.approx(len(audio) / 2 / RATE, abs=0.1)
    starts = [message.start for message in ended]
    assert starts == sorted(starts)
    assert starts[-1] > len(pcm) / 2 / RATE


async def test_finalize_with_the_asynchronous_client(world, pcm):
    where, keys = world
    async with httpx.AsyncClient(timeout=90) as http:
        client = AsyncDeepgramClient(api_key=keys["free"], environment=where, httpx_client=http)
        options = {"model": "nova-2", "encoding": "linear16", "sample_rate": RATE}
        async with client.listen.v1.connect(**options) as live:
            await live.send_media(pcm)
            await live.send_finalize()
            heard = []
            async with asyncio.timeout(90):
                while not heard or not heard[-1].from_finalize:
                    heard.append(await live.recv())
        text = " ".join(result.channel.alternatives[0].transcript for result in heard)
        assert is_the_sentence(text)


def test_text_is_spoken_while_it_is_written(client):
    with client.speak.v1.connect(
        model="aura-2-thalia-en", encoding="linear16", sample_rate=RATE
    ) as live:
        assert live.recv().type == "Metadata"
        for word in SENTENCE.split():
            live.send_text(SpeakV1Text(type="Speak", text=f"{word} "))
        live.send_flush()
        audio = bytearray()
        while isinstance(message := live.recv(), bytes):
            audio += message
        assert message.type == "Flushed"
        live.send_clear()
        assert live.recv().type == "Cleared"
        live.send_close()
    assert 2 < len(audio) / 2 / RATE < 8
    assert np.abs(np.frombuffer(audio, np.int16)).max() > 1000
