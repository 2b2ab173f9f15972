"""Score who speaks when on mixtures of synthetic voices: diarization error rate and confusion.

2 to 6 speakers talk in turn, with and without overlaps. The voices are those of flite, festival and
espeak-ng (Debian), each a pool of its own and all together; the embedded encoder was trained on
espeak-ng's. Everything goes through the engine, as for `diarized_json`. Errors are a share of the
speech, with a collar of 0.25 s around each border of a turn:

    python -m benchmarks.asr.diarization

Where pyannote.metrics is installed, each row also has its error rate, of the same turns.

With `--session` the speakers are told apart turn by turn, as in a live session whose turns end with
0.5 s of silence.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.measure import write_result
from izwi.arrays import Float32
from izwi.audio.decode import decode_audio
from izwi.audio.speech_regions import SAMPLE_RATE, RegionRules, speech_regions
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speakers.diarize import THRESHOLD, DiarizationOptions, diarize
from izwi_api.services.speakers.encoder import SpeakerEncoder
from izwi_api.services.speakers.online import OnlineSpeakers
from izwi_api.services.speakers.timeline import speech_windows

TEXTS = (
    "The old bridge over the river was closed for repairs in the spring.",
    "Nobody in the village could remember such a cold and windy winter.",
    "She opened the letter slowly and read every line of it twice.",
    "We will meet at the station tomorrow morning, just after seven.",
    "The dog ran across the field and disappeared behind the barn.",
    "My brother bought a small house near the sea last year.",
    "It takes about an hour to walk from here to the market.",
    "They talked for a long time about music, books and travel.",
)
FLITE = ("awb", "rms", "slt", "kal16")
FESTIVAL = ("kal_diphone", "ked_diphone")
ESPEAK = (
    *(("en-gb", 50), ("en-us+f3", 60), ("en-us+m3", 35)),
    *(("en-gb-scotland+f2", 50), ("en-us+m7", 45), ("en-gb-x-rp+f4", 55)),
)
_LEVEL, _NOISE = 0.06, 3e-4
_COLLAR_S, _STEP_S = 0.25, 0.01
_TURNS = 4  # of each speaker
_SESSION_SILENCE_S = 0.5


class Spoken(NamedTuple):
    """A turn: [start, stop) in seconds."""

    start_s: float
    stop_s: float
    speaker: str


def spoken_clips(folder: Path) -> dict[str, list[Float32]]:
    """Return the texts in each voice, 16 kHz at one level without silence around them."""
    clips: dict[str, list[Float32]] = defaultdict(list)
    for number, text in enumerate(TEXTS):
        path = str(folder / f"{number}.wav")
        for voice in FLITE:
            _run(["flite", "-voice", voice, "-t", text, "-o", path])
            clips[f"flite {voice}"].append(_trimmed(path))
        for voice in FESTIVAL:
            _run(["text2wave", "-eval", f"(voice_{voice})", "-o", path], text)
            clips[f"festival {voice}"].append(_trimmed(path))
        for voice, pitch in ESPEAK:
            _run(["espeak-ng", "-v", voice, "-p", str(pitch), "-w", path, text])
            clips[f"espeak {voice}"].append(_trimmed(path))
    return clips


def _run(command: list[str], text: str = "") -> None:
    subprocess.run(command, input=text.encode(), check=True, stderr=subprocess.DEVNULL)


def _trimmed(path: str) -> Float32:
    samples = decode_audio(Path(path).read_bytes(), SAMPLE_RATE)
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    samples = samples[loud[0] : loud[-1]]
    leveled: Float32 = samples * (_LEVEL / np.sqrt(np.mean(np.square(samples))))
    return leveled


def mixture(
    clips: dict[str, list[Float32]], names: Sequence[str], overlap: float, seed: int
) -> tuple[Float32, list[Spoken]]:
    """Return a conversation of the named voices, and its turns.

    Args:
        clips: From `spoken_clips`.
        names: The voices.
        overlap: Share of the turns that begin 0.5 to 1.5 s before the one before them ends.
        seed: Of turns, pauses and noise.
    """
    rng = np.random.default_rng(seed)
    parts: list[tuple[int, Float32]] = []
    turns: list[Spoken] = []
    end, last = SAMPLE_RATE // 2, ""
    for number in range(_TURNS * len(names)):
        others = [name for name in names if name != last]
        last = names[number] if number < len(names) else str(rng.choice(others))
        clip = clips[last][int(rng.integers(len(TEXTS)))]
        overlaps = number > 0 and rng.random() < overlap
        gap_s = -rng.uniform(0.5, 1.5) if overlaps else rng.uniform(0.1, 0.6)
        start = max(0, end + int(gap_s * SAMPLE_RATE))
        end = start + len(clip)
        parts.append((start, clip))
        turns.append(Spoken(start / SAMPLE_RATE, end / SAMPLE_RATE, last))
    longest = max(start + len(clip) for start, clip in parts)
    audio = rng.normal(0, _NOISE, longest + SAMPLE_RATE // 2).astype(np.float32)
    for start, clip in parts:
        audio[start : start + len(clip)] += clip
    return audio, turns


class Errors(NamedTuple):
    """Seconds of speech: missed, false, of the wrong speaker, and in total."""

    missed_s: float
    false_s: float
    confused_s: float
    total_s: float

    def plus(self, other: Errors) -> Errors:
        """Return the sums."""
        return Errors(*(a + b for a, b in zip(self, other, strict=True)))


def score(truth: Sequence[Spoken], found: Sequence[Spoken]) -> Errors:
    """Compare turns; found speakers are matched with true ones, the largest common time first."""
    end_s = max((turn.stop_s for turn in (*truth, *found)), default=0.0)
    steps = int(end_s / _STEP_S) + 1
    true, guessed = _grid(truth, steps), _grid(found, steps)  # (speakers, steps)
    counted = np.ones(steps, bool)
    collar = round(_COLLAR_S / _STEP_S)
    for turn in truth:
        for border_s in (turn.start_s, turn.stop_s):
            place = round(border_s / _STEP_S)
            counted[max(0, place - collar) : place + collar] = False
    true, guessed = true[:, counted], guessed[:, counted]
    common = true.astype(np.int64) @ guessed.T.astype(np.int64)
    matched = 0
    while common.size and common.max() > 0:
        row, column = np.unravel_index(int(common.argmax()), common.shape)
        matched += int(common[row, column])
        common[row], common[:, column] = -1, -1
    speaking, heard = true.sum(0), guessed.sum(0)
    counts = (
        np.maximum(speaking - heard, 0).sum(),
        np.maximum(heard - speaking, 0).sum(),
        np.minimum(speaking, heard).sum() - matched,
        speaking.sum(),
    )
    return Errors(*(float(count) * _STEP_S for count in counts))


def public_rate(pairs: Sequence[tuple[Sequence[Spoken], Sequence[Spoken]]]) -> float | None:
    """Return the error rate of true and found turns by pyannote.metrics, in percent.

    It matches speakers so that the rate is lowest, and needs no grid. None: it is not installed
    (`pip install pyannote.metrics`).
    """
    try:
        from pyannote.core import Annotation, Segment
        from pyannote.metrics.diarization import DiarizationErrorRate
    except ImportError:
        return None
    metric = DiarizationErrorRate(collar=2 * _COLLAR_S)  # of both sides of a border together
    for pair in pairs:
        truth, found = Annotation(), Annotation()
        for turns, made in zip(pair, (truth, found), strict=True):
            for number, turn in enumerate(turns):
                made[Segment(turn.start_s, turn.stop_s), number] = turn.speaker
        metric(truth, found)
    return 100 * float(abs(metric))


def _grid(turns: Sequence[Spoken], steps: int) -> npt.NDArray[np.bool_]:
    names = sorted({turn.speaker for turn in turns})
    grid = np.zeros((len(names), steps), bool)
    for turn in turns:
        span = slice(round(turn.start_s / _STEP_S), round(turn.stop_s / _STEP_S))
        grid[names.index(turn.speaker), span] = True
    return grid


Finder = Callable[[SpeakerEncoder, Float32, float], Awaitable[list[Spoken]]]


async def in_file(encoder: SpeakerEncoder, audio: Float32, threshold: float) -> list[Spoken]:
    """Return the turns of a whole recording."""
    turns, names = await diarize(encoder, audio, DiarizationOptions(threshold=threshold))
    return [
        Spoken(turn.start / SAMPLE_RATE, turn.stop / SAMPLE_RATE, names[turn.speaker])
        for turn in turns
    ]


async def in_session(encoder: SpeakerEncoder, audio: Float32, threshold: float) -> list[Spoken]:
    """Return the turns of a recording as a live session finds them, one after another."""
    speakers, found = OnlineSpeakers(threshold), []
    for start, stop in speech_regions(audio, RegionRules(silence_s=_SESSION_SILENCE_S)):
        part = audio[start:stop]
        regions = speech_regions(part, RegionRules()) or [(0, len(part))]
        windows = speech_windows(regions, len(part))
        vectors = await encoder.encode([part[w.start : w.stop] for w in windows])
        for turn, name in speakers.add(regions, windows, vectors):
            place = (start + turn.start) / SAMPLE_RATE, (start + turn.stop) / SAMPLE_RATE
            found.append(Spoken(*place, name))
    return found


async def measure(
    encoder: SpeakerEncoder, clips: dict[str, list[Float32]], threshold: float, find: Finder
) -> list[dict[str, Any]]:
    """Return a row for each pool of voices, with and without overlaps."""
    pools = {
        "espeak-ng": [name for name in clips if name.startswith("espeak")],
        "flite and festival": [name for name in clips if not name.startswith("espeak")],
        "all": list(clips),
    }
    rows = []
    for pool, voices in pools.items():
        for overlap in (0.0, 0.3):
            total, right = Errors(0.0, 0.0, 0.0, 0.0), 0
            pairs = []
            for count in range(2, 7):
                chosen = np.random.default_rng([count, len(voices)]).permutation(voices)[:count]
                audio, truth = mixture(clips, chosen.tolist(), overlap, seed=count)
                found = await find(encoder, audio, threshold)
                total = total.plus(score(truth, found))
                pairs.append((truth, found))
                right += len({turn.speaker for turn in found}) == count
            public = public_rate(pairs)
            missed, false, confused = (100 * part / total.total_s for part in total[:3])
            row = {
                "voices": pool,
                "overlapping_turns_percent": round(100 * overlap),
                "der_percent": round(missed + false + confused, 1),
                "der_pyannote_percent": None if public is None else round(public, 1),
                "missed_percent": round(missed, 1),
                "false_percent": round(false, 1),
                "confusion_percent": round(confused, 1),
                "right_number_of_speakers": f"{right} of 5",
                "speech_s": round(total.total_s),
            }
            rows.append(row)
    return rows


async def main() -> None:
    """Measure, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="izwi-tiny-tts", help="a model with a speaker encoder")
    parser.add_argument("--threshold", type=float, default=THRESHOLD)
    parser.add_argument("--session", action="store_true", help="turn by turn")
    options = parser.parse_args()
    backend = torch_backend("cpu")
    registry = Registry(backend)
    registry.load(options.model)
    engine = AsyncEngine(Engine(registry.models, backend, EngineConfig()))
    engine.start()
    try:
        encoder = SpeakerEncoder(ServedModels(engine, registry), "model")
        with tempfile.TemporaryDirectory() as folder:
            clips = spoken_clips(Path(folder))
        find = in_session if options.session else in_file
        rows = await measure(encoder, clips, options.threshold, find)
    finally:
        await engine.stop()
    name = "diarization_session" if options.session else "diarization"
    write_result(name, rows, model=options.model, threshold=options.threshold)


if __name__ == "__main__":
    asyncio.run(main())
