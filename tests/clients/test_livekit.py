"""livekit's OpenAI plugins as they come: `pip install .[clients]`."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

agents = pytest.importorskip("livekit.agents", reason="livekit-agents is not installed")
openai = pytest.importorskip("livekit.plugins.openai", reason="its openai plugin is not installed")
aiohttp = pytest.importorskip("aiohttp")
rtc = pytest.importorskip("livekit.rtc")

from tests.clients.conftest import SENTENCE  # noqa: E402

FINAL = agents.stt.SpeechEventType.FINAL_TRANSCRIPT
NO_RETRY = agents.APIConnectOptions(max_retry=0)


@pytest.fixture
async def speaker(base_url):
    tts = openai.TTS(model="izwi-tiny-tts", voice="ash", base_url=base_url, api_key="none")
    yield tts
    await tts.aclose()


@pytest.fixture
async def listen(base_url):
    """Make transcribers."""
    made = []

    def make(model="izwi-tiny-asr", **options):
        stt = openai.STT(model=model, base_url=base_url, api_key="none", **options)
        made.append(stt)
        return stt

    yield make
    for stt in made:
        await stt._client.close()  # the plugin leaves it open


async def heard(tts, text):
    """Samples of all that is said."""
    frames = []
    async with tts.synthesize(text, conn_options=NO_RETRY) as stream:
        async for event in stream:
            assert (event.frame.sample_rate, event.frame.num_channels) == (24_000, 1)
            frames.append(np.frombuffer(event.frame.data, np.int16))
    return np.concatenate(frames)


@pytest.mark.parametrize("audio", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
async def test_speech_arrives_as_events(speaker, base_url, audio):
    """The plugin asks for `stream_format: sse`, and decodes what the events carry."""
    tts = openai.TTS(
        model="izwi-tiny-tts", voice="ash", response_format=audio, base_url=base_url, api_key="none"
    )
    samples = await heard(tts, SENTENCE)
    await tts.aclose()
    assert 2 < len(samples) / 24_000 < 10
    assert np.abs(samples).max() > 1000


async def test_speech_streams_and_stops_on_disconnect(speaker, is_speaking):
    stream = speaker.synthesize(" ".join([SENTENCE] * 8), conn_options=NO_RETRY)
    await anext(stream)
    assert await is_speaking()
    await stream.aclose()
    for _ in range(100):
        if not await is_speaking():
            return
        await asyncio.sleep(0.05)
    pytest.fail("it still speaks")


async def test_usage_is_counted(speaker):
    metrics = []
    speaker.on("metrics_collected", metrics.append)
    await heard(speaker, "Good morning.")
    await asyncio.sleep(0)
    assert metrics[0].input_tokens > 0
    assert metrics[0].output_tokens > 0


async def test_speech_arrives_as_bytes(base_url):
    """Of this model the plugin asks no events: it reads the body as it comes."""
    tts = openai.TTS(model="tts-1", voice="ash", base_url=base_url, api_key="none")
    samples = await heard(tts, SENTENCE)
    await tts.aclose()
    assert 2 < len(samples) / 24_000 < 10


async def test_errors_are_reported(base_url):
    tts = openai.TTS(model="none", voice="ash", base_url=base_url, api_key="none")
    with pytest.raises(agents.APIStatusError) as caught:
        await heard(tts, "Good morning.")
    await tts.aclose()
    assert caught.value.status_code == 404
    assert caught.value.request_id.startswith("req_")
    assert not caught.value.retryable


async def test_a_clip_is_transcribed(listen, spoken):
    samples, text = spoken
    step = 2400  # frames of 100 ms, as a room delivers them
    frames = [
        rtc.AudioFrame(part.tobytes(), 24_000, 1, len(part))
        for part in (samples[at : at + step] for at in range(0, len(samples), step))
    ]
    event = await listen().recognize(frames, conn_options=NO_RETRY)
    assert event.type is FINAL
    assert event.alternatives[0].text == text
    assert event.alternatives[0].language == "en"


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": "About a house.", "temperature": 0.0, "detect_language": True},
        {"model": "whisper-1"},  # it asks for verbose_json
        {"model": "gpt-transcribe", "keywords": ["river", "garden"]},
        {"model": "gpt-transcribe", "language": ["en", "de"]},  # candidates
    ],
)
async def test_transcription_options_are_accepted(listen, spoken, options):
    samples, text = spoken
    frame = rtc.AudioFrame(samples.tobytes(), 24_000, 1, len(samples))
    event = await listen(**options).recognize(frame, conn_options=NO_RETRY)
    assert len(event.alternatives[0].text.split()) > len(text.split()) / 2


async def test_speech_is_transcribed_while_it_arrives(listen, spoken):
    """As agents do it: their own detector of voice cuts the stream, each piece is posted."""
    samples, text = spoken
    detector = agents.inference.VAD(model="silero")
    silence = np.zeros(24_000, np.int16)
    audio = np.concatenate([silence[:6000], samples, silence, silence])
    stream = agents.stt.StreamAdapter(stt=listen(), vad=detector).stream(conn_options=NO_RETRY)
    for at in range(0, len(audio), 480):
        part = audio[at : at + 480]
        stream.push_frame(rtc.AudioFrame(part.tobytes(), 24_000, 1, len(part)))
    stream.end_input()
    events = [event async for event in stream]
    await stream.aclose()
    said = [e.alternatives[0].text for e in events if e.type is FINAL]
    assert len(" ".join(said).split()) >= len(text.split()) / 2


async def test_text_is_spoken_while_it_is_written(speaker):
    """As agents do it: sentences are cut from what a language model writes, and said in turn."""
    adapter = agents.tts.StreamAdapter(tts=speaker)
    async with adapter.stream(conn_options=NO_RETRY) as stream:
        for word in f"{SENTENCE} And so it is until the evening comes.".split():
            stream.push_text(word + " ")
        stream.end_input()
        frames = [event.frame async for event in stream]
    assert sum(frame.duration for frame in frames) > 4


async def test_a_realtime_session_transcribes(listen, spoken):
    """Their streaming transcriber is a transcription session of /v1/realtime."""
    samples, text = spoken
    audio = np.concatenate([samples, np.zeros(24_000, np.int16)])
    async with agents.utils.http_context.open():
        stream = listen(use_realtime=True).stream(conn_options=NO_RETRY)
        for start in range(0, len(audio), 2400):
            piece = audio[start : start + 2400]
            stream.push_frame(rtc.AudioFrame(piece.tobytes(), 24_000, 1, len(piece)))
        event = await anext(stream)
        while event.type != FINAL:
            event = await anext(stream)
        await stream.aclose()
    assert event.alternatives[0].text == text
