"""Words wrong of the embedded transcriber in noise, with and without noise reduction.

The voices are those of `diarization`, the noises pink noise and voices that talk at once, at levels
relative to the speech. Each clip follows two seconds of its noise, as an open microphone hears it,
and only the clip is transcribed. Denoisers that are installed are compared: WebRTC's (PyPI
`webrtc-noise-gain`) at three of its levels, and RNNoise (PyPI `pyrnnoise`, its library alone):

    python -m benchmarks.asr.noise_reduction

`--save FOLDER` writes the clips and a `list.json` of each denoiser, noise and level for other
transcribers.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr

from benchmarks.asr.diarization import TEXTS, spoken_clips
from benchmarks.measure import write_result
from benchmarks.quality.embedded import World, gather, word_error_rate
from izwi.arrays import Float32
from izwi.audio.pcm import from_s16le, to_s16le
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine

RATE = 16_000
LEVELS_DB = (0, 5, 10)
# Of 4: WebRTC's low, moderate and very high suppression.
_WEBRTC_LEVELS = (1, 2, 4)
_BABBLE = Path("tests/realtime/sounds/babble.opus")
_LEAD_S, _AFTER_S = 2.0, 0.3
Denoiser = Callable[[Float32], Float32]


class Clip(NamedTuple):
    """A clip with noise before and under it.

    Attributes:
        samples: (n,) at 16 kHz, of which the first `_LEAD_S` are noise alone.
    """

    text: str
    samples: Float32


def denoisers() -> dict[str, Denoiser]:
    """Return the denoisers that are installed, and one that does nothing."""
    found: dict[str, Denoiser] = {"none": lambda samples: samples}
    makers: dict[str, tuple[str, Callable[[Any], Denoiser]]] = {
        f"webrtc_{level}": ("webrtc_noise_gain", partial(_webrtc, level=level))
        for level in _WEBRTC_LEVELS
    }
    for name, (module, make) in {**makers, "rnnoise": ("pyrnnoise.rnnoise", _rnnoise)}.items():
        try:
            found[name] = make(importlib.import_module(module))
        except ImportError as missing:
            print(f"without {name}: {missing}")
    return found


def _webrtc(module: Any, level: int) -> Denoiser:
    def denoise(samples: Float32) -> Float32:
        processor = module.AudioProcessor(0, level)
        size = RATE // 100
        padded = np.pad(samples, (0, -len(samples) % size))
        parts = [
            processor.Process10ms(to_s16le(padded[start : start + size])).audio
            for start in range(0, len(padded), size)
        ]
        return from_s16le(b"".join(parts))[: len(samples)]

    return denoise


def _rnnoise(module: Any) -> Denoiser:
    def denoise(samples: Float32) -> Float32:
        state, size = module.create(), 480
        wide = soxr.resample(samples, RATE, 48_000)
        padded = np.clip(np.pad(wide, (0, -len(wide) % size)), -1, 1)
        parts = [
            module.process_mono_frame(state, padded[start : start + size])[0]
            for start in range(0, len(padded), size)
        ]
        module.destroy(state)
        clean = np.concatenate(parts).astype(np.float32) / 32768
        narrow: Float32 = soxr.resample(clean, 48_000, RATE)[: len(samples)].astype(np.float32)
        return narrow

    return denoise


def noises(seconds: float, seed: int) -> dict[str, Float32]:
    """Return each kind of noise, at RMS 1."""
    rng = np.random.default_rng(seed)
    count = int(seconds * RATE)
    spectrum = np.fft.rfft(rng.normal(0, 1, count))
    pink = np.fft.irfft(spectrum / np.sqrt(np.arange(len(spectrum)) + 1.0), count)
    recorded, rate = soundfile.read(_BABBLE, dtype="float32")
    babble = np.resize(np.roll(soxr.resample(recorded, rate, RATE), int(rng.integers(RATE))), count)
    made = {"pink": pink, "babble": babble}
    return {
        name: (noise / np.sqrt(np.mean(np.square(noise)))).astype(np.float32)
        for name, noise in made.items()
    }


def noisy_clips(
    voices: dict[str, list[Float32]], each: int
) -> dict[tuple[str, int | None], list[Clip]]:
    """Return clips by noise and its level in dB below the speech; ("", None) is without noise."""
    made: dict[tuple[str, int | None], list[Clip]] = {("", None): []}
    lead, after = int(_LEAD_S * RATE), int(_AFTER_S * RATE)
    for number, clips in enumerate(voices.values()):
        for which in range(each):
            place = (number + which * 5) % len(TEXTS)
            speech = np.pad(clips[place], (lead, after))
            made["", None].append(Clip(TEXTS[place], speech))
            level = np.sqrt(np.mean(np.square(clips[place])))
            for name, noise in noises(len(speech) / RATE, 10 * number + which).items():
                for level_db in LEVELS_DB:
                    gain = level * 10 ** (-level_db / 20)
                    mixed = (speech + gain * noise[: len(speech)]).astype(np.float32)
                    made.setdefault((name, level_db), []).append(Clip(TEXTS[place], mixed))
    return made


async def measure(world: World, each: int, save: Path | None) -> list[dict[str, Any]]:
    """Return a row for each noise and level; write what was heard below a folder, if given."""
    with tempfile.TemporaryDirectory() as folder:
        clips = noisy_clips(spoken_clips(Path(folder)), each)
    rows = []
    for (noise, level_db), some in clips.items():
        row: dict[str, Any] = {"noise": noise or "none", "speech_to_noise_db": level_db}
        for name, denoise in denoisers().items():
            cleaned = [
                Clip(clip.text, denoise(clip.samples)[int((_LEAD_S - _AFTER_S) * RATE) :])
                for clip in some
            ]
            if save is not None:
                write_clips(save / f"{name}-{noise or 'none'}-{level_db}", cleaned)

            async def heard(_: int, clip: Clip) -> tuple[str, str]:
                return clip.text, await world.transcribe_16k(clip.samples)

            row[f"{name}_wer_percent"] = word_error_rate(await gather(cleaned, heard))
        print(row, flush=True)
        rows.append(row)
    return rows


def write_clips(folder: Path, clips: list[Clip]) -> None:
    """Write clips as WAV, and their texts as `list.json`."""
    folder.mkdir(parents=True)
    paths = [str(folder / f"{number}.wav") for number in range(len(clips))]
    for path, clip in zip(paths, clips, strict=True):
        soundfile.write(path, clip.samples, RATE)
    texts = [clip.text for clip in clips]
    (folder / "list.json").write_text(json.dumps(list(zip(paths, texts, strict=True))))


async def main() -> None:
    """Measure, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--each", type=int, default=2, help="texts of each of the 12 voices")
    parser.add_argument("--save", type=Path, help="a new folder for the clips")
    options = parser.parse_args()
    backend = torch_backend("cpu")
    registry = Registry(backend)
    registry.load("izwi-tiny-asr")
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.start()
    try:
        world = World(engine, registry, "", "izwi-tiny-asr", "")
        rows = await measure(world, options.each, options.save)
    finally:
        await engine.stop()
    write_result("noise_reduction", rows, model="izwi-tiny-asr", texts_of_each_voice=options.each)


if __name__ == "__main__":
    asyncio.run(main())
