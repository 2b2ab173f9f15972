"""Synthesise the corpus with espeak-ng: 24 kHz speech, a phoneme every 20 ms, the words' times.

The library is driven through ctypes on all cores; 200,000 sentences take about a minute on 64.
ESPEAK_LIBRARY and ESPEAK_DATA name the shared library and the folder that holds espeak-ng-data
where they are not installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from izwi_models.tiny.recipes.short import HELDOUT_SHORT, backchannels
from izwi_models.tiny.recipes.text import HELDOUT
from izwi_models.tiny.recipes.voices import NAMED, Voice, all_voices

SAMPLE_RATE = 24_000
FRAME = 1920
LABEL = 480  # samples of one phoneme label
LONGEST_SECONDS = 8.0
PHONES = Path(__file__).with_name("phones.json")
UNKNOWN_PHONE = 127
SILENCE = "_"
EDGE = 3840  # samples of silence kept before and after
_NAMED_SHARE = 0.35
NEWEST = ("greta",)  # named voices that were trained least
_NEWEST_TIMES = 12  # how often these speak, relative to other named voices

_RETRIEVAL, _PHONEME_EVENTS, _WORD_EVENT, _PHONEME_EVENT = 2, 1, 1, 7
_RATE, _PITCH, _RANGE = 1, 3, 4
_UTF8 = 1

Int16 = npt.NDArray[np.int16]


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class SpokenWord(NamedTuple):
    """A word, or some that espeak-ng says as one ("of the"): where they stand, when they begin."""

    place: int  # in the text, in characters from 0
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Utterance:
    """One spoken sentence: whole frames of 24 kHz audio, phoneme numbers every 20 ms, words."""

    samples: Int16
    phones: npt.NDArray[np.uint8]
    words: list[SpokenWord]


class Espeak:
    """The synthesiser, one a process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ.get("ESPEAK_LIBRARY", "libespeak-ng.so.1"))
        data = os.environ.get("ESPEAK_DATA")
        self._rate: int = self._library.espeak_Initialize(
            _RETRIEVAL, 1000, data.encode() if data else None, _PHONEME_EVENTS | 0x8000
        )
        if self._rate != 22050:
            raise RuntimeError(f"espeak-ng did not start: {self._rate}")
        self._pieces: list[Int16] = []
        self._phones: list[tuple[int, str]] = []
        self._words: list[tuple[int, int]] = []  # place in the text from 1, milliseconds
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)
        self._voice = ""

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if count > 0 and samples:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type != 0:
            if events[index].type == _PHONEME_EVENT:
                name = events[index].id.string.decode("utf8", "ignore")
                self._phones.append((events[index].audio_position, name))
            elif events[index].type == _WORD_EVENT:
                self._words.append((events[index].text_position, events[index].audio_position))
            index += 1
        return 0

    def speak(self, text: str, voice: Voice) -> tuple[Int16, list[tuple[int, str]]]:
        """Speech at 22,050 Hz, and (milliseconds, phoneme) events.

        Raises:
            RuntimeError: The voice does not exist.
        """
        if voice.espeak != self._voice:
            if self._library.espeak_SetVoiceByName(voice.espeak.encode()):
                raise RuntimeError(f"no voice {voice.espeak}")
            self._voice = voice.espeak
        settings = ((_RATE, voice.speed), (_PITCH, voice.pitch), (_RANGE, voice.pitch_range))
        for parameter, value in settings:
            self._library.espeak_SetParameter(parameter, value, 0)
        self._pieces, self._phones, self._words = [], [], []
        encoded = text.encode() + b"\0"
        self._library.espeak_Synth(encoded, len(encoded), 0, 1, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        samples = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.int16)
        return samples, self._phones

    def utterance(
        self, text: str, voice: Voice, phones: dict[str, int], spoken: str = ""
    ) -> Utterance | None:
        """Speak, resample, trim and label; None if the result is silent or too long.

        Args:
            text: One or two sentences.
            voice: Who speaks.
            phones: Numbers of the phonemes.
            spoken: What espeak-ng is given instead of the text, which is then one word.
        """
        raw, events = self.speak(spoken or text, voice)
        loud = np.flatnonzero(np.abs(raw.astype(np.int32)) > 60)
        if len(loud) < 2000:
            return None
        first, last = loud[0], loud[-1] + 1
        speech = to_24k(raw[first:last])
        speech *= 0.6 * 32767 / np.abs(speech).max()
        frames = -(-(len(speech) + 2 * EDGE) // FRAME)
        if frames * FRAME > LONGEST_SECONDS * SAMPLE_RATE:
            return None
        samples = np.zeros(frames * FRAME, np.int16)
        samples[EDGE : EDGE + len(speech)] = speech.astype(np.int16)
        shift = EDGE / SAMPLE_RATE * 1000 - first / self._rate * 1000
        shifted = [(at + shift, name) for at, name in events]
        begins = [(place - 1, at + shift) for place, at in self._words]
        if spoken:
            begins = [(0, EDGE / SAMPLE_RATE * 1000)]
        words = time_words(on_words(text, begins), shifted)
        return Utterance(samples, label_phones(shifted, len(samples) // LABEL, phones), words)


def to_24k(raw: Int16) -> npt.NDArray[np.float32]:
    """Resample 22,050 Hz by zero-padding the spectrum (speech starts and ends in silence)."""
    blocks = -(-(len(raw) + 1) // (147 * 32)) * 32  # a round length for the transform
    spectrum = np.fft.rfft(raw.astype(np.float32), blocks * 147)
    resampled = np.fft.irfft(spectrum, blocks * 160) * (160 / 147)
    return resampled[: len(raw) * 160 // 147].astype(np.float32)


def label_phones(
    events: list[tuple[float, str]], count: int, phones: dict[str, int]
) -> npt.NDArray[np.uint8]:
    """One phoneme number for each 20 ms."""
    labels = np.full(count, phones.get(SILENCE, UNKNOWN_PHONE), np.uint8)
    ends = [at for at, _ in events[1:]] + [count * 20.0]
    for (at, name), end in zip(events, ends, strict=True):
        plain = name.lstrip("',%=|") or SILENCE
        labels[max(0, round(at / 20)) : max(0, round(end / 20))] = phones.get(plain, UNKNOWN_PHONE)
    return labels


def on_words(text: str, events: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Keep the events that begin a word, each at the word's first letter.

    espeak-ng sends one at the ends of clauses too: it stands on the character before its clause, or
    before the text, and its time is that of the clause's end. Taken for a word, it would be the
    last that was said before every other. And phrases that it knows ("such as", "no longer") have
    theirs one letter too far.

    Args:
        text: What was said.
        events: Place in the text, and a time.
    """
    kept: dict[int, float] = {}
    for place, at in events:
        if 0 <= place < len(text) and not text[place].isspace():
            kept.setdefault(text.rfind(" ", 0, place) + 1, at)
    return list(kept.items())


def time_words(words: list[tuple[int, float]], events: list[tuple[float, str]]) -> list[SpokenWord]:
    """Let each word end where the next one begins, or the pause before that.

    Args:
        words: Place in the text, and milliseconds of the beginning.
        events: Milliseconds and names of all phonemes, in order.
    """
    end_ms = events[-1][0]
    nexts = [at for _, at in words[1:]] + [end_ms]
    pauses = [at for at, name in events if name.startswith(SILENCE)]
    return [
        SpokenWord(place, at, min([pause for pause in pauses if at < pause < end] + [end]))
        for (place, at), end in zip(words, nexts, strict=True)
    ]


class Row(NamedTuple):
    """A text to be spoken.

    Attributes:
        voice: Its number in `all_voices`.
        text: As it is written.
        spoken: What espeak-ng is given instead, if not empty.
        pace: Speed relative to the voice's own.
    """

    voice: int
    text: str
    spoken: str = ""
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """Sentences for one process and where their audio goes."""

    stem: Path
    rows: list[Row]


def run_job(job: Job) -> None:
    """Synthesise the rows, in order, into STEM.i16, .phones.npy, .words.jsonl and .json."""
    espeak, voices = Espeak(), all_voices()
    phones = json.loads(PHONES.read_text())
    meta: list[tuple[int, str, int]] = []
    labels, words = [], []
    with job.stem.with_suffix(".i16").open("wb") as sink:
        for voice, text, spoken, pace in job.rows:
            speaker = replace(voices[voice], speed=round(voices[voice].speed * pace))
            made = espeak.utterance(text, speaker, phones, spoken)
            if made is not None:
                made.samples.tofile(sink)
                labels.append(made.phones)
                words.append(json.dumps(made.words) + "\n")
                meta.append((voice, text, len(made.samples)))
    np.save(job.stem.with_suffix(".phones.npy"), np.concatenate(labels))
    job.stem.with_suffix(".words.jsonl").write_text("".join(words))
    job.stem.with_suffix(".json").write_text(json.dumps(meta))


def joined(sentences: list[str], share: float, seed: int) -> list[str]:
    """Let a share of the sentences be said in one go with the next one, which then is not alone."""
    generator = random.Random(seed)
    rest = iter(sentences)
    return [
        f"{sentence} {next(rest, '')}".strip() if generator.random() < share else sentence
        for sentence in rest
    ]


def assign_voices(texts: Iterable[tuple[str, str, float]], seed: int) -> list[Row]:
    """Give each training text, as written and spoken, and its pace, a voice: a third are named."""
    generator = random.Random(seed)
    trained = [i for i, voice in enumerate(all_voices()) if not voice.heldout]
    others = trained[len(NAMED) :]
    times = [_NEWEST_TIMES if voice.name in NEWEST else 1 for voice in NAMED]
    named = [i for i, count in enumerate(times) for _ in range(count)]
    return [
        Row(generator.choice(named if generator.random() < _NAMED_SHARE else others), *text)
        for text in texts
    ]


def heldout_rows(sentences: list[str], seed: int) -> list[Row]:
    """Each held-out sentence twice: by a voice that is trained on, then by one that is not."""
    generator = random.Random(seed)
    voices = all_voices()
    seen = [i for i, voice in enumerate(voices) if not voice.heldout]
    unseen = [i for i, voice in enumerate(voices) if voice.heldout]
    rows = [Row(generator.choice(seen), sentence) for sentence in sentences]
    return rows + [Row(unseen[i % len(unseen)], sentence) for i, sentence in enumerate(sentences)]


def jobs_for(
    texts: Sequence[tuple[str, str, float]], out: Path, processes: int, seed: int
) -> Iterator[Job]:
    """Cut the corpus into a few jobs a process, each sorted by voice, and two for held-out text.

    Args:
        texts: As written; as espeak-ng is given them where that differs, or ""; relative speed.
        out: Folder of the corpus.
        processes: How many synthesise.
        seed: Of the voices.
    """
    rows = assign_voices(texts, seed)
    size = max(1, -(-len(rows) // (processes * 4)))
    for number, start in enumerate(range(0, len(rows), size)):
        yield Job(out / f"train{number:04d}", sorted(rows[start : start + size]))
    yield Job(out / "heldout", heldout_rows(HELDOUT.read_text().splitlines(), seed))
    short = HELDOUT_SHORT.read_text().splitlines()
    yield Job(out / "short", [Row(i % len(NAMED), text) for i, text in enumerate(short)])


def collect_phones(sentences: list[str]) -> dict[str, int]:
    """Number the phonemes that a sample of sentences uses in every accent."""
    espeak = Espeak()
    found = {SILENCE}
    for accent in ("en-us", "en", "en-gb-x-rp"):
        for sentence in sentences:
            _, events = espeak.speak(sentence, Voice("", accent, 50, 50, 165))
            found |= {name.lstrip("',%=|") for _, name in events}
    found.discard("")
    return {name: number for number, name in enumerate(sorted(found)[:UNKNOWN_PHONE])}


def in_parallel(work: Callable[[Job], None], jobs: list[Job], processes: int) -> None:
    """Run the jobs on all cores, each in a fresh process: espeak-ng keeps global state."""
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for _ in pool.imap_unordered(work, jobs, chunksize=1):
            pass


def main() -> None:
    """Synthesise train.txt and the held-out sentences into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="folder that holds train.txt")
    parser.add_argument("out", type=Path)
    parser.add_argument("--number", type=int, default=200_000)
    parser.add_argument("--joined", type=float, default=0.0, help="share said with the next one")
    parser.add_argument("--backchannels", type=int, default=3000, help='"Mm-hm." and the like')
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    begin = time.monotonic()
    sentences = (args.text / "train.txt").read_text().splitlines()[: args.number]
    sentences = joined(sentences, args.joined, args.seed)
    if not PHONES.is_file():
        PHONES.write_text(json.dumps(collect_phones(sentences[:3000]), indent=0) + "\n")
    args.out.mkdir(parents=True, exist_ok=True)
    texts = [(sentence, "", 1.0) for sentence in sentences]
    texts += backchannels(args.backchannels, args.seed)
    random.Random(args.seed).shuffle(texts)
    jobs = list(jobs_for(texts, args.out, args.processes, args.seed))
    in_parallel(run_job, jobs, args.processes)
    seconds = sum(path.stat().st_size for path in args.out.glob("*.i16")) / 2 / SAMPLE_RATE
    print(f"{seconds / 3600:.1f} hours of speech in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
