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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from izwi_models.tiny.recipes.rows import Row, assign_voices, heldout_rows, joined, replies
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
        for row in job.rows:
            voice, text = voices[row.voice], row.text
            speaker = replace(voice, speed=round(voice.speed * row.pace))
            made = espeak.utterance(text, speaker, phones, row.spoken)
            if made is not None and row.reply:
                reply = espeak.utterance(row.reply, voices[row.reply_voice], phones)
                made = reply and followed_by(made, reply, len(text) + 1, row.pause_frames)
                text = f"{text} {row.reply}"
            if made is not None:
                made.samples.tofile(sink)
                labels.append(made.phones)
                words.append(json.dumps(made.words) + "\n")
                meta.append((row.voice, text, len(made.samples)))
    np.save(job.stem.with_suffix(".phones.npy"), np.concatenate(labels))
    job.stem.with_suffix(".words.jsonl").write_text("".join(words))
    job.stem.with_suffix(".json").write_text(json.dumps(meta))


def followed_by(
    first: Utterance, second: Utterance, place: int, pause_frames: int
) -> Utterance | None:
    """Let one utterance follow another; None if they are too long together.

    Args:
        first: It loses `EDGE` samples of the silence at its end.
        second: It loses `EDGE` samples of the silence at its start.
        place: Where its text begins in the text of both, in characters from 0.
        pause_frames: Codec frames of silence between what is left of the two.
    """
    pause = np.zeros(pause_frames * FRAME, np.int16)
    samples = np.concatenate([first.samples[:-EDGE], pause, second.samples[EDGE:]])
    if len(samples) > LONGEST_SECONDS * SAMPLE_RATE:
        return None
    cut = EDGE // LABEL
    silence = np.full(len(pause) // LABEL, first.phones[0], np.uint8)
    phones = np.concatenate([first.phones[:-cut], silence, second.phones[cut:]])
    shift_ms = (len(samples) - len(second.samples)) / SAMPLE_RATE * 1000
    later = [
        SpokenWord(place + word.place, word.start_ms + shift_ms, word.end_ms + shift_ms)
        for word in second.words
    ]
    return Utterance(samples, phones, first.words + later)


def jobs_for(
    texts: Sequence[tuple[str, str, float]],
    out: Path,
    processes: int,
    seed: int,
    dialogues: Sequence[Row] = (),
    clones: int | None = None,
) -> Iterator[Job]:
    """Cut the corpus into a few jobs a process, each sorted by voice, and two for held-out text.

    Args:
        texts: As written; as espeak-ng is given them where that differs, or ""; relative speed.
        out: Folder of the corpus.
        processes: How many synthesise.
        seed: Of the voices.
        dialogues: Rows with replies, which only the transcriber learns from.
        clones: See `assign_voices`.
    """
    spoken = assign_voices(texts, seed, clones)
    for part, rows in (("train", spoken), ("replies", dialogues)):
        size = max(1, -(-len(rows) // (processes * 4)))
        for number, start in enumerate(range(0, len(rows), size)):
            yield Job(out / f"{part}{number:04d}", sorted(rows[start : start + size]))
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
    parser.add_argument("--replies", type=int, default=0, help="pairs of sentences by two voices")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clones", type=int, help="so many voices for cloning, and no others")
    parser.add_argument("--no-heldout", action="store_true", help="no held-out texts")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    begin = time.monotonic()
    sentences = (args.text / "train.txt").read_text().splitlines()[: args.number]
    dialogues = replies(sentences, args.replies, args.seed)
    sentences = joined(sentences, args.joined, args.seed)
    if not PHONES.is_file():
        PHONES.write_text(json.dumps(collect_phones(sentences[:3000]), indent=0) + "\n")
    args.out.mkdir(parents=True, exist_ok=True)
    texts = [(sentence, "", 1.0) for sentence in sentences]
    texts += backchannels(args.backchannels, args.seed)
    random.Random(args.seed).shuffle(texts)
    jobs = list(jobs_for(texts, args.out, args.processes, args.seed, dialogues, args.clones))
    if args.no_heldout:
        jobs = [job for job in jobs if job.stem.name not in ("heldout", "short")]
    in_parallel(run_job, jobs, args.processes)
    seconds = sum(path.stat().st_size for path in args.out.glob("*.i16")) / 2 / SAMPLE_RATE
    print(f"{seconds / 3600:.1f} hours of speech in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
