"""Evaluate the embedded checkpoints on held-out sentences, in free generation.

Word error rates by izwi-tiny-asr: for the synthesizer's own speech (seen and unseen voices), for
that speech through the codec, and for izwi-tiny-tts in both text modes, with named voices. Cloning:
whether pitch and speaker vector follow clips of forty unseen voices.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from izwi.inputs.speech import TextMode
from izwi_models.qwen3_codec.encoder import encode
from izwi_models.tiny.recipes.augment import coloured_noise, no_speech
from izwi_models.tiny.recipes.data import Corpus
from izwi_models.tiny.recipes.decoding import Listener, Sampling, Speaker
from izwi_models.tiny.recipes.speech import FRAME
from izwi_models.tiny.recipes.text import words
from izwi_models.tiny.recipes.voices import NAMED
from izwi_models.tiny.recipes.voicing import compare_pitch, log_correlation, track_pitch

_CLIP_FRAMES = 30
_MOST_FRAMES = 130  # limit of an utterance; one that reaches it did not end by itself
_LONGEST_FRAMES = 100  # maximum length for the transcriber
_EACH_VOICE = 100  # sentences with each named voice
_EACH_CLONE = 10  # sentences with each cloned voice
_PARTS = ("hearing", "codec", "speaking", "cloning")


def errors(said: str, heard: str) -> tuple[int, int]:
    """Return the edit distance in words, and the number of words in `said`."""
    true, found = words(said), words(heard)
    row = list(range(len(found) + 1))
    for i, word in enumerate(true):
        diagonal, row[0] = row[0], i + 1
        for j, other in enumerate(found):
            best = min(row[j] + 1, row[j + 1] + 1, diagonal + (word != other))
            diagonal, row[j + 1] = row[j + 1], best
    return row[-1], len(true)


def word_error_rate(said: list[str], heard: list[str]) -> float:
    """Return the word errors in percent of the words in `said`."""
    pairs = [errors(a, b) for a, b in zip(said, heard, strict=True)]
    return 100 * sum(e for e, _ in pairs) / max(1, sum(n for _, n in pairs))


def listen(
    listener: Listener, corpus: Corpus, items: np.ndarray, noise_db: float | None = None
) -> dict[str, float]:
    """Measure the word error rate of the synthesizer's speech, in noise `noise_db` below it."""
    clips = [_audio(corpus, item) for item in items]
    if noise_db is not None:
        torch.manual_seed(0)
        clips = [audio + _noise_for(audio, noise_db) for audio in clips]
    heard = listener.transcribe(clips)
    said = [corpus.texts[item] for item in items]
    for a, b in list(zip(said, heard, strict=True))[:4]:
        print(f"  {a!r} -> {b!r}")
    return {"wer": word_error_rate(said, heard), "sentences": len(items)}


def listen_to_nothing(listener: Listener, num_clips: int = 512) -> dict[str, float]:
    """Measure the share of clips without speech (0.2 to 8 s) transcribed with words, in percent."""
    torch.manual_seed(0)
    clips = no_speech(num_clips, 8 * 24_000, listener.device)
    lengths = np.geomspace(0.24, 8, num_clips) * 12.5
    pieces = [audio[: int(n) * FRAME] for audio, n in zip(clips, lengths, strict=True)]
    heard = listener.transcribe(pieces)
    print("  words in silence:", [text for text in heard if words(text)][:6])
    return {"clips with words": 100 * float(np.mean([bool(words(t)) for t in heard]))}


def listen_to_pairs(
    listener: Listener, corpus: Corpus, pairs: np.ndarray, pause_frames: int
) -> dict[str, float]:
    """Measure the word error rate of two sentences in one clip, and how often the second is lost.

    The second one counts as lost if the transcript has fewer words than the first sentence plus
    half of the second.

    Args:
        listener: The transcriber.
        corpus: Where the sentences are.
        pairs: (n, 2) items; those that are too long together are left out.
        pause_frames: Codec frames of silence between the two, beyond their own.
    """
    pairs = pairs[corpus.frames[pairs].sum(1) + pause_frames <= _LONGEST_FRAMES]
    pause = torch.zeros(pause_frames * FRAME, device=listener.device)
    clips = [torch.cat([_audio(corpus, a), pause, _audio(corpus, b)]) for a, b in pairs]
    said = [f"{corpus.texts[a]} {corpus.texts[b]}" for a, b in pairs]
    heard = listener.transcribe(clips)
    missing = [
        len(words(text)) < len(words(corpus.texts[a])) + len(words(corpus.texts[b])) / 2
        for (a, b), text in zip(pairs, heard, strict=True)
    ]
    share = 100 * float(np.mean(missing))
    return {"wer": word_error_rate(said, heard), "pairs": len(pairs), "second missing": share}


def pairs_of_a_voice(corpus: Corpus, items: np.ndarray) -> np.ndarray:
    """Pair the items of each voice: (n, 2). Of an odd number the last one is left out."""
    voices = corpus.voices[items]
    groups = [items[voices == voice] for voice in np.unique(voices)]
    return np.concatenate([its[: len(its) // 2 * 2].reshape(-1, 2) for its in groups])


def listen_through_codec(
    listener: Listener, speaker: Speaker, corpus: Corpus, items: np.ndarray
) -> dict[str, float]:
    """Measure word error rate and pitch of the synthesizer's speech, encoded and decoded."""
    clips, codes = [_audio(corpus, item) for item in items], []
    for audio in clips:
        with torch.no_grad():
            codes.append(encode(speaker.ops, speaker.codec_weights, speaker.codec, audio[None])[0])
    made = speaker.audio(codes)
    heard = listener.transcribe(made)
    said = [corpus.texts[item] for item in items]
    pairs = zip(made, clips, strict=True)
    voicing = np.mean([compare_pitch(ours[None], theirs[None]) for ours, theirs in pairs], 0)
    return {
        "wer": word_error_rate(said, heard),
        "sentences": len(items),
        "voiced": float(voicing[0]),
        "voiced_kept": float(voicing[1]),
        "pitch_off": float(voicing[2]),
    }


def speak_and_listen(
    listener: Listener, speaker: Speaker, texts: list[str], mode: TextMode, sampling: Sampling
) -> dict[str, float]:
    """Measure the round-trip word error rate with the named voices in turn."""
    voices = [NAMED[i % len(NAMED)].name for i in range(len(texts))]
    codes = speaker.speak(texts, voices, mode, sampling, most_frames=_MOST_FRAMES)
    heard = listener.transcribe(speaker.audio(codes))
    for a, b in list(zip(texts, heard, strict=True))[:6]:
        print(f"  {a!r} -> {b!r}")
    endless = sum(len(row) >= _MOST_FRAMES for row in codes)
    return {"wer": word_error_rate(texts, heard), "sentences": len(texts), "endless": endless}


def speak_each_voice(
    listener: Listener, speaker: Speaker, texts: list[str], sampling: Sampling
) -> dict[str, float]:
    """Measure the round-trip word error rate of each named voice, for the same sentences."""
    voices = [voice.name for voice in NAMED for _ in texts]
    codes = speaker.speak(texts * len(NAMED), voices, TextMode.FULL, sampling)
    heard = listener.transcribe(speaker.audio(codes))
    figures: dict[str, float] = {"sentences": len(texts)}
    for number, voice in enumerate(NAMED):
        its = slice(number * len(texts), (number + 1) * len(texts))
        figures[voice.name] = word_error_rate(texts, heard[its])
        wrong = [(a, b) for a, b in zip(texts, heard[its], strict=True) if errors(a, b)[0]]
        print(f"  {voice.name}:", wrong[:3])
    return figures


def clone(
    listener: Listener,
    speaker: Speaker,
    corpus: Corpus,
    sampling: Sampling,
    mode: TextMode,
) -> dict[str, float]:
    """Clone each unseen voice from a clip, and speak sentences of other voices with it.

    Pitch and speaker vectors are those of the first sentence of each voice.
    `nearer_to_own` is the share of (speech, other voice) pairs in which the speech's speaker vector
    is nearer, by angle, to that of its own clip than to that of the other voice's clip.
    """
    unseen = len(corpus) // 2
    first = {int(v): unseen + i for i, v in reversed(list(enumerate(corpus.voices[unseen:])))}
    long = [i for i in range(unseen, len(corpus)) if corpus.frames[i] >= _CLIP_FRAMES + 2]
    clips = {voice: next(i for i in long if corpus.voices[i] == voice) for voice in first}
    items = list(clips.values())
    references = torch.stack([_audio(corpus, i)[FRAME : (_CLIP_FRAMES + 1) * FRAME] for i in items])
    vectors = speaker.embed_clips(references)
    moves = [7 + len(items) * turn for turn in range(_EACH_CLONE)]
    texts = [corpus.texts[(i + move) % unseen] for move in moves for i in items]
    spoken = speaker.speak(texts, vectors.repeat(_EACH_CLONE, 1), mode, sampling)
    everything = speaker.audio(spoken)
    heard, made = listener.transcribe(everything), everything[: len(items)]
    said = torch.cat([speaker.embed_clips(_at_least(audio)[None]) for audio in made])
    alike = torch.cosine_similarity(said[:, None], vectors[None], dim=-1)
    nearer = (alike.diagonal()[:, None] > alike).float()
    tracks = [track_pitch(_at_least(audio)[None]) for audio in made]
    wanted = track_pitch(references)
    figures: dict[str, float] = {"voices": len(items)}
    for name, voiced_only in (("", True), ("_all_audible", False)):
        theirs = wanted.median_f0_hz(voiced_only)
        ours = [track.median_f0_hz(voiced_only)[0] for track in tracks]
        correlation, count = log_correlation(ours, theirs)
        figures |= {f"log_f0_correlation{name}": correlation, f"voices_with_pitch{name}": count}
    shares = [float(track.voiced.sum() / track.audible.sum()) for track in (*tracks, wanted)]
    return {
        **figures,
        "voiced": float(np.mean(shares[:-1])),
        "voiced_in_clips": shares[-1],
        "nearer_to_own": float(nearer.sum() / (len(items) * (len(items) - 1))),
        "wer": word_error_rate(texts, heard),
        "sentences": len(texts),
    }


def _audio(corpus: Corpus, item: int) -> Tensor:
    start, count = int(corpus.starts[item]) * FRAME, int(corpus.frames[item]) * FRAME
    return corpus.samples[start : start + count].float() / 32768


def _noise_for(audio: Tensor, decibels: float) -> Tensor:
    noise = coloured_noise(1, len(audio), audio.device)[0]
    return noise * audio.square().mean().sqrt() * 10 ** (-decibels / 20)


def _at_least(audio: Tensor, samples: int = 24_000) -> Tensor:
    return torch.nn.functional.pad(audio, (0, max(0, samples - len(audio))))


def main() -> None:
    """Print all figures, and write them to a JSON file with --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that the speech recipe wrote")
    parser.add_argument("tts", type=Path)
    parser.add_argument("asr", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6])
    parser.add_argument("--top-k", type=int, default=20)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus, short = (Corpus(args.data, part, device) for part in ("heldout", "short"))
    listener = Listener(args.asr, device)
    half, begin = len(corpus) // 2, time.monotonic()
    seen, unseen = np.arange(min(half, args.sentences)), np.arange(half, half + args.sentences)
    results: dict[str, Any] = {}

    def note(name: str, figures: dict[str, float]) -> None:
        results[name] = figures
        shown = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
        print(f"[{time.monotonic() - begin:4.0f}s] {name}: {shown}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=2) + "\n")

    speaker = Speaker(args.tts, device)
    if "hearing" in args.parts:
        note("asr, seen voices", listen(listener, corpus, seen))
        note("asr, unseen voices", listen(listener, corpus, unseen[unseen < len(corpus)]))
        note("asr, short", listen(listener, short, np.arange(len(short))))
        for decibels in (20, 10):
            note(f"asr, noise {decibels} dB", listen(listener, corpus, seen, decibels))
        note("asr, no speech", listen_to_nothing(listener))
        for pause in (3, 12):
            name = f"asr, {{}}, {pause * 0.08:.2g} s between"
            two = seen[: len(seen) // 2 * 2].reshape(-1, 2)
            note(name.format("two voices"), listen_to_pairs(listener, corpus, two, pause))
            one = pairs_of_a_voice(corpus, unseen[unseen < len(corpus)])
            note(name.format("one voice twice"), listen_to_pairs(listener, corpus, one, pause))
    if "codec" in args.parts:
        for name, items in (("seen", seen), ("unseen", unseen[unseen < len(corpus)])):
            figures = listen_through_codec(listener, speaker, corpus, items[:200])
            note(f"codec, {name} voices", figures)
        figures = listen_through_codec(listener, speaker, short, np.arange(len(short)))
        note("codec, short", figures)
    texts = [corpus.texts[i] for i in seen]
    for temperature in args.temperatures:
        sampling = Sampling(temperature, args.top_k)
        if "speaking" in args.parts:
            for mode in (TextMode.FULL, TextMode.STREAMING):
                figures = speak_and_listen(listener, speaker, texts, mode, sampling)
                note(f"tts, {mode}, temperature {temperature}", figures)
            figures = speak_and_listen(listener, speaker, short.texts, TextMode.FULL, sampling)
            note(f"tts, short, temperature {temperature}", figures)
            figures = speak_each_voice(listener, speaker, texts[:_EACH_VOICE], sampling)
            note(f"tts, each voice, temperature {temperature}", figures)
        if "cloning" in args.parts:
            figures = clone(listener, speaker, corpus, sampling, TextMode.STREAMING)
            note(f"cloning, temperature {temperature}", figures)


if __name__ == "__main__":
    main()
