"""Measure the embedded checkpoints on held-out sentences, running freely.

Word error rates by izwi-tiny-asr: of the synthesiser's own speech (seen and unseen voices), of
that speech through the codec, and of what izwi-tiny-tts says in both text modes, with named
voices. Cloning: whether pitch and speaker vector follow clips of forty unseen voices.
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

from izwi.request import TextMode
from izwi_models.qwen3_codec.encoder import encode
from izwi_models.tiny.recipes.data import Corpus
from izwi_models.tiny.recipes.decoding import Listener, Sampling, Speaker
from izwi_models.tiny.recipes.speech import FRAME
from izwi_models.tiny.recipes.text import words
from izwi_models.tiny.recipes.voices import NAMED
from izwi_models.tiny.recipes.voicing import compare_pitch, log_correlation, track_pitch

_CLIP_FRAMES = 30


def errors(said: str, heard: str) -> tuple[int, int]:
    """Edit distance in words, and words said."""
    true, found = words(said), words(heard)
    row = list(range(len(found) + 1))
    for i, word in enumerate(true):
        diagonal, row[0] = row[0], i + 1
        for j, other in enumerate(found):
            best = min(row[j] + 1, row[j + 1] + 1, diagonal + (word != other))
            diagonal, row[j + 1] = row[j + 1], best
    return row[-1], len(true)


def word_error_rate(said: list[str], heard: list[str]) -> float:
    """Errors in percent of the words said."""
    pairs = [errors(a, b) for a, b in zip(said, heard, strict=True)]
    return 100 * sum(e for e, _ in pairs) / max(1, sum(n for _, n in pairs))


def listen(listener: Listener, corpus: Corpus, items: np.ndarray) -> dict[str, float]:
    """Word error rate of the synthesiser's speech."""
    sounds = [_sound(corpus, item) for item in items]
    heard = listener.transcribe(sounds)
    said = [corpus.texts[item] for item in items]
    for a, b in list(zip(said, heard, strict=True))[:4]:
        print(f"  {a!r} -> {b!r}")
    return {"wer": word_error_rate(said, heard), "sentences": len(items)}


def listen_through_codec(
    listener: Listener, speaker: Speaker, corpus: Corpus, items: np.ndarray
) -> dict[str, float]:
    """Word error rate and pitch of the synthesiser's speech, encoded and decoded."""
    sounds, codes = [_sound(corpus, item) for item in items], []
    for sound in sounds:
        with torch.no_grad():
            codes.append(encode(speaker.ops, speaker.codec_weights, speaker.codec, sound[None])[0])
    made = speaker.sound(codes)
    heard = listener.transcribe(made)
    said = [corpus.texts[item] for item in items]
    pairs = zip(made, sounds, strict=True)
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
    """Round-trip word error rate with the named voices in turn."""
    voices = [NAMED[i % len(NAMED)].name for i in range(len(texts))]
    codes = speaker.speak(texts, voices, mode, sampling)
    heard = listener.transcribe(speaker.sound(codes))
    for a, b in list(zip(texts, heard, strict=True))[:6]:
        print(f"  {a!r} -> {b!r}")
    endless = sum(len(row) >= 130 for row in codes)
    return {"wer": word_error_rate(texts, heard), "sentences": len(texts), "endless": endless}


def clone(
    listener: Listener,
    speaker: Speaker,
    corpus: Corpus,
    sampling: Sampling,
    mode: TextMode,
) -> dict[str, float]:
    """Follow a clip of each unseen voice with a sentence that another voice said.

    `nearer_to_own` is the share of (speech, other voice) pairs in which the speaker vector of the
    speech is nearer, by angle, to that of its own clip than to that of the other voice's.
    """
    unseen = len(corpus) // 2
    first = {int(v): unseen + i for i, v in reversed(list(enumerate(corpus.voices[unseen:])))}
    long = [i for i in range(unseen, len(corpus)) if corpus.frames[i] >= _CLIP_FRAMES + 2]
    clips = {voice: next(i for i in long if corpus.voices[i] == voice) for voice in first}
    items = list(clips.values())
    references = torch.stack([_sound(corpus, i)[FRAME : (_CLIP_FRAMES + 1) * FRAME] for i in items])
    vectors = speaker.embed_clips(references)
    texts = [corpus.texts[(i + 7) % unseen] for i in items]
    made = speaker.sound(speaker.speak(texts, vectors, mode, sampling))
    heard = listener.transcribe(made)
    said = torch.cat([speaker.embed_clips(_at_least(sound)[None]) for sound in made])
    alike = torch.cosine_similarity(said[:, None], vectors[None], dim=-1)
    nearer = (alike.diagonal()[:, None] > alike).float()
    tracks = [track_pitch(_at_least(sound)[None]) for sound in made]
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
    }


def _sound(corpus: Corpus, item: int) -> Tensor:
    start, count = int(corpus.starts[item]) * FRAME, int(corpus.frames[item]) * FRAME
    return corpus.samples[start : start + count].float() / 32768


def _at_least(sound: Tensor, samples: int = 24_000) -> Tensor:
    return torch.nn.functional.pad(sound, (0, max(0, samples - len(sound))))


def main() -> None:
    """Print every figure and write them to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that the speech recipe wrote")
    parser.add_argument("tts", type=Path)
    parser.add_argument("asr", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--only-cloning", action="store_true")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6])
    parser.add_argument("--top-k", type=int, default=20)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus = Corpus(args.data, "heldout", device)
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
    if not args.only_cloning:
        note("asr, seen voices", listen(listener, corpus, seen))
        note("asr, unseen voices", listen(listener, corpus, unseen[unseen < len(corpus)]))
        for name, items in (("seen", seen), ("unseen", unseen[unseen < len(corpus)])):
            figures = listen_through_codec(listener, speaker, corpus, items[:200])
            note(f"codec, {name} voices", figures)
    texts = [corpus.texts[i] for i in seen]
    for temperature in args.temperatures:
        sampling = Sampling(temperature, args.top_k)
        for mode in () if args.only_cloning else (TextMode.FULL, TextMode.STREAMING):
            figures = speak_and_listen(listener, speaker, texts, mode, sampling)
            note(f"tts, {mode}, temperature {temperature}", figures)
        figures = clone(listener, speaker, corpus, sampling, TextMode.STREAMING)
        note(f"cloning, temperature {temperature}", figures)


if __name__ == "__main__":
    main()
