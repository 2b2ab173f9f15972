"""The embedded checkpoints speak and transcribe, through the engine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import soxr
import torch

from izwi.arrays import Float32
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry, embedded
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.errors import InvalidRequest
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, TranscriptionInput
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.transcription.transcribe import PieceOptions, open_transcription
from izwi_models.tiny.recipes.loudness import loudness

SENTENCES = (
    "The train leaves at seven in the morning.",
    "She put the book on the table near the window.",
    "Could you please send me the letter on Monday?",
    "I think the weather will be warm tomorrow.",
)


class Loaded:
    """The checkpoints of speech and transcription, which all tests share."""

    def __init__(self) -> None:
        self.backend = torch_backend("cpu", "float32")
        self.registry = Registry(self.backend)
        for name in ("izwi-tiny-tts", "izwi-tiny-asr"):
            self.registry.load(name)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Loaded()


class World:
    """An engine over loaded checkpoints.

    Its clock advances a millisecond whenever it is read. So audio is made in the same chunks, and
    rounded alike, however busy the machine is.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.registry = loaded.registry
        clock = itertools.count()
        engine = Engine(
            self.registry.models, loaded.backend, EngineConfig(), lambda: next(clock) / 1000
        )
        self.engine = AsyncEngine(engine)

    async def say(self, text: str, **ask) -> tuple[Float32, list[list[int]]]:
        speech = await open_speech(
            ServedModels(self.engine, self.registry).speech("izwi-tiny-tts"),
            SpeechInput(text, **ask),
        )
        chunks = [chunk async for chunk in speech.output()]
        pcm = np.concatenate([chunk.pcm for chunk in chunks if chunk.pcm is not None])
        return pcm, [entry for chunk in chunks for entry in chunk.entries.tolist()]

    async def transcribe(self, pcm: Float32, *, detects_speech: bool = True) -> str:
        ask = TranscriptionInput(soxr.resample(pcm, 24000, 16000).astype(np.float32))
        heard = await open_transcription(
            ServedModels(self.engine, self.registry).transcription("izwi-tiny-asr"),
            ask,
            PieceOptions(detects_speech=detects_speech),
        )
        await heard.finish()
        return heard.text

    async def transcribe_each(self, clips: list[Float32]) -> list[str]:
        return await asyncio.gather(*map(self.transcribe, clips))


@pytest.fixture
async def world(loaded: Loaded) -> AsyncIterator[World]:
    made = World(loaded)
    made.engine.start()
    yield made
    await made.engine.stop()


def bag(text: str) -> list[str]:
    return "".join(c if c.isalpha() or c == "'" else " " for c in text.lower()).split()


@pytest.mark.parametrize(
    "mode",
    [TextMode.STREAMING, pytest.param(TextMode.FULL, marks=pytest.mark.slow)],
    ids=["streaming", "full"],
)
async def test_embedded_voice_is_transcribed_correctly(world: World, mode: TextMode) -> None:
    said = [
        world.say(text, voice="basil", text_mode=mode, seed=seed)
        for seed, text in enumerate(SENTENCES)
    ]
    clips = [pcm for pcm, _ in await asyncio.gather(*said)]
    assert all(np.abs(pcm).max() > 0.05 for pcm in clips)
    missed = total = 0
    for text, words in zip(SENTENCES, await world.transcribe_each(clips), strict=True):
        heard = bag(words)
        missed += sum(word not in heard for word in bag(text))
        total += len(bag(text))
    assert missed / total < 0.1, f"{missed} of {total} words were not heard"


@pytest.mark.slow
async def test_all_voices_are_equally_loud(world: World) -> None:
    """Of sentences and seeds other than those by which they were levelled, within 0.5 LU each."""
    levels = {}
    for voice in world.registry.speech("izwi-tiny-tts").speakers:
        asked = [(text, 40 + seed) for text in SENTENCES for seed in range(4)]
        said = await asyncio.gather(*(world.say(t, voice=voice, seed=s) for t, s in asked))
        heard = [loudness(torch.from_numpy(pcm)[None]) for pcm, _ in said]
        levels[voice] = float(torch.cat(heard).mean())
        assert max(np.abs(pcm).max() for pcm, _ in said) < 1.0
    middle = sum(levels.values()) / len(levels)
    assert all(abs(level - middle) < 0.5 for level in levels.values()), levels


async def test_voices_differ_and_a_clip_is_followed(world: World) -> None:
    said = (world.say(SENTENCES[0], voice=voice) for voice in ("dorian", "greta"))
    (low, _), (high, _) = await asyncio.gather(*said)

    def brightness(pcm: Float32) -> float:
        """Mean zero crossings of the louder half: higher voices cross more often."""
        loud = pcm[np.abs(pcm) > np.median(np.abs(pcm))]
        return float((np.diff(np.signbit(loud)) != 0).mean())

    assert brightness(low) != brightness(high)
    said = (world.say(SENTENCES[1], voice=ReferenceClip(clip), seed=1) for clip in (low, high))
    (follows_low, _), (follows_high, _) = await asyncio.gather(*said)
    assert not np.array_equal(follows_low[:24000], follows_high[:24000])


@pytest.mark.slow
async def test_a_long_text_starts_long_before_it_is_done_and_is_the_same_twice(
    world: World,
) -> None:
    text = " ".join(SENTENCES)
    speech = await open_speech(
        ServedModels(world.engine, world.registry).speech("izwi-tiny-tts"),
        SpeechInput(text, voice="basil", seed=5),
    )
    frames_at_first_audio, pieces = None, []
    async for chunk in speech.output():
        if chunk.pcm is not None:
            if frames_at_first_audio is None:
                frames_at_first_audio = speech.num_frames
            pieces.append(chunk.pcm)
    once = np.concatenate(pieces)
    assert len(once) > 24000 * 7
    assert frames_at_first_audio is not None
    assert frames_at_first_audio <= speech.num_frames / 4
    twice, _ = await world.say(text, voice="basil", seed=5)
    np.testing.assert_array_equal(once, twice)


async def test_what_is_not_plain_english_is_spelled_out_or_refused(world: World) -> None:
    spelled, _ = await world.say("It costs five dollars.", voice="clara")
    digits, _ = await world.say("It costs $5", voice="clara")
    np.testing.assert_array_equal(spelled, digits)
    with pytest.raises(InvalidRequest):
        await world.say("世界", voice="clara")


EVERYDAY = ("Good morning.", "Hello there.", "Thank you very much.", "Yes.")


@pytest.mark.slow
@pytest.mark.parametrize("num_texts", [1, 4])
async def test_everyday_utterances_come_back_from_every_named_voice(
    world: World, num_texts: int
) -> None:
    """Each voice says this many sentences, and all sentences are said."""
    asked = [
        (voice, text)
        for number, voice in enumerate(world.registry.speech("izwi-tiny-tts").speakers)
        for text in (EVERYDAY * 2)[number % 4 :][:num_texts]
    ]
    said = await asyncio.gather(*(world.say(text, voice=voice, seed=0) for voice, text in asked))
    heard = await world.transcribe_each([pcm for pcm, _ in said])
    wrong = [
        (voice, text, words)
        for (voice, text), words in zip(asked, heard, strict=True)
        if bag(words) != bag(text)
    ]
    assert len(wrong) <= 1, wrong


async def test_the_second_sentence_is_heard_after_a_pause(world: World) -> None:
    said = await asyncio.gather(*(world.say(text, voice="basil", seed=3) for text in SENTENCES[:2]))
    pause = np.zeros(24000, np.float32)
    heard = await world.transcribe(np.concatenate([said[0][0], pause, said[1][0]]))
    for text in SENTENCES[:2]:
        assert sum(word in bag(heard) for word in bag(text)) >= len(bag(text)) - 2


def without_speech(kind: str) -> Float32:
    """Three seconds at 24 kHz."""
    rng, at = np.random.default_rng(0), np.arange(72_000) / 24_000
    match kind:
        case "silence":
            return np.zeros(len(at), np.float32)
        case "noise":
            return (0.1 * rng.standard_normal(len(at))).astype(np.float32)
        case "gusts":
            return (0.1 * rng.standard_normal(len(at)) * (1 + np.sin(9 * at))).astype(np.float32)
        case "hum":
            return sum(0.1 * np.sin(314 * k * at) / k for k in range(1, 9)).astype(np.float32)
        case "clicks":
            return (rng.random(len(at)) < 2e-4).astype(np.float32)
    notes = 220 * 2 ** (rng.choice([0, 4, 7, 12], 12) / 12)
    phase = np.cumsum(2 * np.pi * np.repeat(notes, 6000) / 24_000)
    return (0.2 * np.sin(phase) + 0.1 * np.sin(2 * phase)).astype(np.float32)


@pytest.mark.parametrize("kind", ["silence", "noise", "gusts", "hum", "clicks", "music"])
@pytest.mark.parametrize("detects_speech", [True, False])
async def test_audio_without_speech_is_transcribed_as_no_words(
    world: World, kind: str, detects_speech: bool
) -> None:
    audio = without_speech(kind)
    assert await world.transcribe(audio, detects_speech=detects_speech) == ""


def test_they_are_small_enough_to_live_in_the_wheel() -> None:
    folders = embedded()
    names = {"izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-aligner", "izwi-tiny-chat"}
    assert names <= set(folders)
    files = [path for folder in folders.values() for path in Path(folder).rglob("*")]
    assert sum(path.stat().st_size for path in files if path.is_file()) <= 90_000_000
