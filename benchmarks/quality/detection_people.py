"""Compare detectors of speech on recordings of a person in noise: ours, WebRTC's and Silero's.

Needs Debian's asterisk-core-sounds-en-g722; Silero's model comes with PyPI's silero-vad and runs in
onnxruntime, and is left out where they are missing. A frame of 20 ms is speech if the clean
recording is within 40 dB of its loudest frame there; gaps of less than 200 ms between such frames
are speech, too. Recordings stand between two seconds of noise.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import webrtcvad

from benchmarks.measure import write_result
from benchmarks.quality.people_speech import RATE, Clip, prompts, read_g722
from izwi.arrays import Float32
from izwi_api.realtime.hearing.vad import FRAME_SAMPLES, VoiceDetector
from izwi_api.settings import VadName

_AROUND_S = 1.0
_BELOW_LOUDEST_DB = 40.0
_GAP_FRAMES = 10
_RATIOS_DB = (20, 10, 5, 0)
_TALKERS = 6
_SILERO_WINDOW, _SILERO_CONTEXT = 512, 64

Frames = npt.NDArray[np.float32]


class Silero:
    """Silero's detector: a probability for each 32 ms, held for the frames of 20 ms."""

    def __init__(self) -> None:
        package = importlib.import_module("onnxruntime")
        spec = find_spec("silero_vad")
        if spec is None or spec.origin is None:
            raise ImportError("silero_vad")
        path = Path(spec.origin).parent / "data" / "silero_vad.onnx"
        options = package.SessionOptions()
        options.intra_op_num_threads = 1
        self._session: Any = package.InferenceSession(str(path), options)

    def judge(self, samples: Float32) -> Frames:
        """Return the probability of speech of each frame of 20 ms."""
        state = np.zeros((2, 1, 128), np.float32)
        context = np.zeros(_SILERO_CONTEXT, np.float32)
        found = []
        for start in range(0, len(samples) - _SILERO_WINDOW + 1, _SILERO_WINDOW):
            window = samples[start : start + _SILERO_WINDOW]
            inputs = {
                "input": np.concatenate([context, window])[None],
                "state": state,
                "sr": np.array(RATE, np.int64),
            }
            probability, state = self._session.run(None, inputs)
            context = window[-_SILERO_CONTEXT:]
            found.append(float(probability[0, 0]))
        at = np.arange(len(samples) // FRAME_SAMPLES) * FRAME_SAMPLES // _SILERO_WINDOW
        return np.array(found, np.float32)[np.minimum(at, len(found) - 1)]


def ours(samples: Float32, vad: VadName = "webrtc") -> Frames:
    """Return the probability of speech of each frame, as live sessions use it."""
    return np.array([frame.speech for frame in VoiceDetector(vad).write(samples)], np.float32)


def webrtc(samples: Float32) -> Frames:
    """Return the share of WebRTC's four settings that detect speech in each frame."""
    pcm = (np.clip(samples, -1, 1) * 32767).astype(np.int16)
    detectors = [webrtcvad.Vad(mode) for mode in range(4)]
    frames = pcm[: len(pcm) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    votes = [[vad.is_speech(frame.tobytes(), RATE) for vad in detectors] for frame in frames]
    return np.mean(votes, 1).astype(np.float32)


def speech_frames(clean: Float32) -> npt.NDArray[np.bool_]:
    """Return which frames of a clean recording are speech."""
    frames = clean[: len(clean) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    level_db = 10 * np.log10(np.mean(np.square(frames), 1) + 1e-12)
    is_speech = level_db > level_db.max() - _BELOW_LOUDEST_DB
    loud = np.flatnonzero(is_speech)
    for before, after in pairwise(loud):
        if after - before <= _GAP_FRAMES:
            is_speech[before:after] = True
    return is_speech


def noises(clips: list[Clip], number: int, count: int) -> dict[str, Float32]:
    """Make noise of level 1: white, pink, and the speech of others at the same time."""
    draw = np.random.default_rng(number)
    white = draw.standard_normal(count)
    hertz = np.fft.rfftfreq(count, 1 / RATE)
    pink = np.fft.irfft(np.fft.rfft(white) / np.sqrt(np.maximum(hertz, 20)), count)
    others = [clips[(number + 1 + n) % len(clips)].samples for n in range(_TALKERS)]
    babble = np.sum([np.resize(other, count) for other in others], 0)
    return {
        name: (noise / noise.std()).astype(np.float32)
        for name, noise in (("white", white), ("pink", pink), ("babble", babble))
    }


def area(truth: npt.NDArray[np.bool_], probability: Frames) -> float:
    """Return the area under the curve of hits over false alarms, in percent."""
    values, places = np.unique(probability, return_inverse=True)
    hits = np.bincount(places[truth], minlength=len(values))[::-1].cumsum() / truth.sum()
    false = np.bincount(places[~truth], minlength=len(values))[::-1].cumsum() / (~truth).sum()
    return 100 * float(np.trapezoid(np.append(0, hits), np.append(0, false)))


def main() -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=30)
    args = parser.parse_args()
    clips = prompts(read_g722, ".g722")[: args.clips]
    detectors: dict[str, Callable[[Float32], Frames]] = {
        "izwi (WebRTC and spectrum)": ours,
        "WebRTC": webrtc,
    }
    if find_spec("onnxruntime") and find_spec("silero_vad"):
        detectors["Silero"] = Silero().judge
        detectors["izwi (Silero)"] = partial(ours, vad="silero")
    truths: dict[tuple[str, int], list[Any]] = {}
    found: dict[tuple[str, int, str], list[Frames]] = {}
    around = np.zeros(round(_AROUND_S * RATE), np.float32)
    for number, clip in enumerate(clips):
        clean = np.concatenate([around, clip.samples, around])
        clean = clean[: len(clean) // FRAME_SAMPLES * FRAME_SAMPLES]
        truth = speech_frames(clean)
        level = np.repeat(truth, FRAME_SAMPLES)
        loud = float(np.sqrt(np.mean(np.square(clean[level]))))
        for kind, noise in noises(clips, number, len(clean)).items():
            for ratio_db in _RATIOS_DB:
                mixed = clean + noise * loud * 10 ** (-ratio_db / 20)
                mixed = mixed * min(1.0, 0.9 / float(np.abs(mixed).max()))
                truths.setdefault((kind, ratio_db), []).append(truth)
                for name, judge in detectors.items():
                    found.setdefault((kind, ratio_db, name), []).append(judge(mixed))
    rows = []
    for (kind, ratio_db, name), parts in found.items():
        truth, probability = np.concatenate(truths[kind, ratio_db]), np.concatenate(parts)
        decided = probability >= 0.5
        rows.append(
            {
                "what": f"{name}, {kind} noise, {ratio_db} dB",
                "area_percent": round(area(truth, probability), 1),
                "missed_percent": round(100 * float((~decided[truth]).mean()), 1),
                "false_percent": round(100 * float(decided[~truth].mean()), 1),
                "clips": len(clips),
            }
        )
    write_result("detection_people", rows)


if __name__ == "__main__":
    main()
