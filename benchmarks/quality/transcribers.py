"""Compare transcribers on all that one must hear: people, synthesizers, noise, silence, pairs.

python -m benchmarks.quality.transcribers izwi-tiny-asr FOLDER --sentences 24

Runs on the CPU. Each transcriber has an engine of its own; all hear the same clips. Kinds of speech
whose packages are missing have no row.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import write_result
from benchmarks.quality.embedded import World, at_16k, gather, spoken, words
from benchmarks.quality.hearing import over_telephone, pairs_of, unseen_clips, with_pink_noise
from benchmarks.quality.people import heard_row, people_clips
from benchmarks.quality.people_speech import RATE, Clip
from benchmarks.quality.without_speech import draw_clips
from izwi.arrays import Float32
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi_models.tiny.recipes.selection import write_clips
from izwi_models.tiny.recipes.short import HELDOUT_SHORT
from izwi_models.tiny.recipes.speech import Espeak
from izwi_models.tiny.recipes.text import HELDOUT
from izwi_models.tiny.recipes.voices import NAMED, all_voices

_TTS = "izwi-tiny-tts"


def espeak_clips(espeak: Espeak, texts: list[str]) -> dict[str, list[Clip]]:
    """Return espeak-ng's speech: trained and other voices, over the telephone, in noise, pairs."""
    seen = [voice for voice in all_voices() if not voice.heldout]
    clean = unseen_clips(espeak, texts)
    following = [*clean[1:], *clean[:1]]
    both = [f"{a} {b}" for a, b in zip(texts, [*texts[1:], *texts[:1]], strict=True)]
    made: dict[str, tuple[list[Float32], list[str]]] = {
        "seen voices": (
            [at_16k(spoken(espeak, t, seen[i % len(seen)])) for i, t in enumerate(texts)],
            texts,
        ),
        "unseen voices": (clean, texts),
        "telephone band": ([over_telephone(x) for x in clean], texts),
        "pink noise, 10 dB": ([with_pink_noise(x, 10, i) for i, x in enumerate(clean)], texts),
        "two sentences": (pairs_of(clean, following), both),
    }
    return {
        f"espeak-ng, {name}": list(map(Clip, clips, said)) for name, (clips, said) in made.items()
    }


async def voice_clips(texts: list[str], short: list[str]) -> dict[str, list[Clip]]:
    """Return speech of izwi-tiny-tts, by its named voices in turn."""
    world = _world(_TTS, "izwi-tiny-asr")
    world.engine.start()

    async def say(index: int, text: str) -> Clip:
        voice = NAMED[index % len(NAMED)].name
        return Clip(at_16k(await world.say(text, voice=voice, seed=index)), text)

    made = {
        f"{_TTS}, sentences": await gather(texts, say),
        f"{_TTS}, short utterances": await gather(short, say),
    }
    await world.engine.stop()
    return made


def _world(*names: str) -> World:
    """Return an engine with models; the last one transcribes."""
    backend = torch_backend("cpu")
    registry = Registry(backend)
    loaded = [registry.load(name) for name in names]
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    return World(engine, registry, _TTS, loaded[-1], "")


async def silence_row(world: World, clips: Sequence[tuple[str, Float32]]) -> dict[str, Any]:
    """Return the share of clips without speech that are heard as words, without detection."""
    heard = await gather(clips, lambda _, clip: world.transcribe_16k(clip[1], detects_speech=False))
    share = float(np.mean([bool(words(text)) for text in heard]))
    return {"with_words_percent": round(100 * share, 2), "clips": len(clips)}


async def rows_of(
    name: str, speech: dict[str, list[Clip]], silence: Sequence[tuple[str, Float32]]
) -> list[dict[str, Any]]:
    """Measure one transcriber."""
    world = _world(name)
    world.engine.start()
    rows = []
    begun_s, heard_s = time.process_time(), 0.0
    for what, clips in speech.items():
        rows.append({"what": what, **await heard_row(world, clips)})
        print(f"  {name}: {rows[-1]}", flush=True)
        heard_s += sum(len(clip.samples) for clip in clips) / RATE
    took_s = time.process_time() - begun_s
    if silence:
        rows.append({"what": "clips without speech", **await silence_row(world, silence)})
    rows.append(
        {"what": "processor seconds a second", "seconds": round(took_s / max(heard_s, 1.0), 4)}
    )
    await world.engine.stop()
    return [{**row, "model": name} for row in rows]


async def all_clips(sentences: int) -> dict[str, list[Clip]]:
    """Return speech of all kinds whose packages are installed."""
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if 4 <= len(words(line)) <= 14][:sentences]
    short = HELDOUT_SHORT.read_text(encoding="utf-8").splitlines()[:sentences]
    made = people_clips(texts) | espeak_clips(Espeak(), texts) | await voice_clips(texts, short)
    return {what: clips for what, clips in made.items() if clips}


def write_speech(speech: dict[str, list[Clip]], folder: Path) -> None:
    """Write a file of each kind, for another run."""
    folder.mkdir(parents=True, exist_ok=True)
    for what, clips in speech.items():
        write_clips(clips, folder / f"{what}.npz")


def read_speech(folder: Path) -> dict[str, list[Clip]]:
    """Read what `write_speech` wrote."""
    speech = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            parts = np.split(file["samples"], np.cumsum(file["lengths"])[:-1])
            texts = file["texts"].tolist()
        speech[path.stem] = [
            Clip((part / 32767).astype(np.float32), text)
            for part, text in zip(parts, texts, strict=True)
        ]
    return speech


async def main(options: argparse.Namespace) -> None:
    """Print and write all figures."""
    kept = options.clips
    speech = read_speech(kept) if kept and kept.is_dir() else await all_clips(options.sentences)
    if kept and not kept.is_dir():
        write_speech(speech, kept)
    chosen = {
        what: clips
        for what, clips in speech.items()
        if any(part in what for part in options.only or [""])
    }
    silence = draw_clips(options.silence, seed=20)
    rows = [row for name in options.models for row in await rows_of(name, chosen, silence)]
    if rows:
        write_result(options.result, rows, models=options.models)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="embedded names or folders of checkpoints")
    parser.add_argument("--sentences", type=int, default=60, help="of each kind")
    parser.add_argument("--clips", type=Path, help="folder of the speech; made if it is missing")
    parser.add_argument("--silence", type=int, default=120, help="clips without speech")
    parser.add_argument("--only", nargs="+", help="kinds whose name has one of these parts")
    parser.add_argument("--result", default="transcribers", help="name of the file in results/")
    asyncio.run(main(parser.parse_args()))
