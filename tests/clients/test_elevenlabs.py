"""ElevenLabs' own SDK, unmodified: `pip install .[clients]`."""

from __future__ import annotations

import io
import shutil
import ssl
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from izwi.audio.decode import decode_audio
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.http.test_tls import make_certificate
from tests.api.served import served

pytest.importorskip("elevenlabs", reason="elevenlabs is not installed")
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.types import VoiceSettings

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
    # the SDK reads it from websockets' exceptions
    pytest.mark.filterwarnings("ignore:ConnectionClosed.code is deprecated"),
]
SENTENCE = "The house is near the river, and the garden is behind the house."
MODELS = ("izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner")
RATE = 16_000


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    """Over HTTPS: the SDK streams text over wss alone."""
    folder = tmp_path_factory.mktemp("served")
    cert, key = make_certificate(folder, "server")
    options = [f"--model={name}" for name in MODELS]
    options += ["--tls-cert", str(cert), "--tls-key", str(key), "--api", "elevenlabs"]
    (folder / "home").mkdir()
    keys = folder / "home" / "keys.toml"
    poor = KeyLimits(characters_per_day=10)
    shown = {"free": add_key(keys, "free", KeyLimits()), "poor": add_key(keys, "poor", poor)}
    trusting = ssl.create_default_context(cafile=str(cert))
    options += ["--api-keys", str(keys)]
    with (
        served(folder, *options, verify=trusting) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SSL_CERT_FILE", str(cert))  # as for any certificate of one's own
        yield f"{server.url}/elevenlabs", shown


@contextmanager
def opened(base_url, key="free"):
    url, keys = base_url
    with httpx.Client(timeout=60) as http:  # the SDK does not close its own
        yield ElevenLabs(base_url=url, api_key=keys.get(key, key), httpx_client=http)


@pytest.fixture
def client(base_url):
    with opened(base_url) as made:
        yield made


@pytest.fixture
def voice(client):
    return client.voices.get_all().voices[0].voice_id


def heard(client, audio, **options):
    file = ("a.mp3", io.BytesIO(audio))
    return client.speech_to_text.convert(model_id="scribe_v1", file=file, **options)


def words_of(text):
    return "".join(c for c in text.lower() if c.isalnum() or c == " ").split()


def test_speech_is_made_and_transcribed(client, voice):
    audio = b"".join(
        client.text_to_speech.convert(voice, text=SENTENCE, model_id="eleven_multilingual_v2")
    )
    assert audio[:3] == b"ID3" or audio[0] == 0xFF  # the SDK asks for MP3 by default
    assert 2 < len(decode_audio(audio, RATE)) / RATE < 8
    transcript = heard(client, audio)
    assert transcript.language_code == "eng"
    expected = words_of(SENTENCE)
    assert len(set(words_of(transcript.text)) & set(expected)) >= len(set(expected)) - 1
    said = [word for word in transcript.words if word.type == "word"]
    assert " ".join(word.text for word in said) == transcript.text
    starts = [word.start for word in said]
    assert starts == sorted(starts)
    assert 0 <= starts[0] < said[-1].end < 8


def test_speech_is_streamed_as_pcm(client, voice):
    pieces = list(
        client.text_to_speech.stream(
            voice,
            text=SENTENCE,
            output_format="pcm_16000",
            voice_settings=VoiceSettings(stability=0.5, speed=1.2),
            request_options={"chunk_size": 4096},
        )
    )
    samples = np.frombuffer(b"".join(pieces), np.int16)
    assert len(pieces) > 5
    assert 1.5 < len(samples) / RATE < 6
    assert np.abs(samples).max() > 1000


def test_characters_have_times(client, voice):
    made = client.text_to_speech.convert_with_timestamps(voice, text=SENTENCE)
    assert "".join(made.alignment.characters) == SENTENCE
    ends = made.alignment.character_end_times_seconds
    assert ends == sorted(ends)
    assert 2 < ends[-1] < 8
    streamed = list(client.text_to_speech.stream_with_timestamps(voice, text=SENTENCE))
    characters = [c for each in streamed if each.alignment for c in each.alignment.characters]
    assert "".join(characters) == SENTENCE
    assert sum(bool(each.audio_base_64) for each in streamed) > 5


def test_text_is_spoken_while_it_is_written(client, voice):
    def words():
        yield from (f"{word} " for word in SENTENCE.split())

    audio = b"".join(
        client.text_to_speech.convert_realtime(
            voice,
            text=words(),
            model_id="eleven_flash_v2_5",
            output_format="pcm_16000",
            voice_settings=VoiceSettings(speed=1.0),
        )
    )
    assert 2 < len(audio) / 2 / RATE < 8
    transcript = heard(client, audio, file_format="pcm_s16le_16")
    assert len(set(words_of(transcript.text)) & set(words_of(SENTENCE))) >= 7


def test_streamed_text_for_an_unknown_voice_is_an_error(client):
    with pytest.raises(ApiError) as caught:
        list(client.text_to_speech.convert_realtime("nobody", text=iter(["Hello."])))
    assert caught.value.status_code == 1008
    assert caught.value.body["error"] == "voice_not_found"


def test_voices_are_cloned_used_and_deleted(client, voice):
    clip = b"".join(client.text_to_speech.convert(voice, text=SENTENCE, output_format="wav_24000"))
    made = client.voices.ivc.create(
        name="mine", files=[clip], labels={"consent": "The speaker agreed."}
    )
    assert client.voices.get(made.voice_id).category == "cloned"
    assert made.voice_id in [v.voice_id for v in client.voices.search(search="mine").voices]
    audio = client.text_to_speech.convert(made.voice_id, text="Good morning.")
    assert len(b"".join(audio)) > 1000
    client.voices.delete(made.voice_id)
    with pytest.raises(ApiError) as caught:
        client.voices.get(made.voice_id)
    assert (caught.value.status_code, caught.value.body["detail"]["status"]) == (
        404,
        "voice_not_found",
    )


def test_models_are_listed(client):
    models = client.models.list()
    assert [model.model_id for model in models] == ["izwi-tiny-tts"]
    assert models[0].can_do_text_to_speech


async def test_the_asynchronous_client(base_url, voice):
    url, keys = base_url
    async with httpx.AsyncClient(timeout=60) as http:
        client = AsyncElevenLabs(base_url=url, api_key=keys["free"], httpx_client=http)
        stream = client.text_to_speech.stream(voice, text="Good morning.")
        assert len([piece async for piece in stream]) > 1


@pytest.mark.parametrize(
    ("key", "status", "code"), [("wrong", 401, "invalid_api_key"), ("poor", 429, "quota_exceeded")]
)
def test_errors_say_what_is_wrong(base_url, voice, key, status, code):
    with opened(base_url, key) as client, pytest.raises(ApiError) as caught:
        b"".join(client.text_to_speech.convert(voice, text=SENTENCE))
    assert caught.value.status_code == status
    assert caught.value.body["detail"]["status"] == code
