"""Keep what codec and talker make of held-out sentences, for judges that a GPU's machine lacks.

Writes int16 audio at 24 kHz into an archive of NumPy, by names that say who speaks and how, and the
texts, under the same names, as JSON beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from izwi.inputs.speech import TextMode
from izwi_models.qwen3_codec.encoder import encode
from izwi_models.tiny.recipes.data import Corpus
from izwi_models.tiny.recipes.decoding import Sampling, Speaker
from izwi_models.tiny.recipes.loudness import loudness
from izwi_models.tiny.recipes.speech import FRAME
from izwi_models.tiny.recipes.voices import NAMED

_CLIP_FRAMES = 30
_NAMES = (
    "Angela Merkel met Sarah Thompson.",
    "Giuseppe Verdi wrote many operas.",
    "The www is older than you think.",
)


class Kept:
    """Clips by name, and what they say."""

    def __init__(self) -> None:
        self._clips: dict[str, np.ndarray] = {}
        self._texts: dict[str, str] = {}

    def add(self, name: str, audio: Tensor, text: str) -> None:
        """Keep (samples,) float32."""
        self._clips[name] = (audio.clamp(-1, 1) * 32767).round().to(torch.int16).cpu().numpy()
        self._texts[name] = text

    def write(self, path: Path) -> None:
        """Write PATH.npz and PATH.json."""
        np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **self._clips)
        path.with_suffix(".json").write_text(json.dumps(self._texts, indent=0) + "\n")


def _audio(corpus: Corpus, item: int) -> Tensor:
    start, count = int(corpus.starts[item]) * FRAME, int(corpus.frames[item]) * FRAME
    return corpus.samples[start : start + count].float() / 32768


def _items(corpus: Corpus, number: int) -> list[int]:
    """Return the first of the named speakers' sentences, and of those by unseen ones."""
    named = np.flatnonzero(corpus.voices < len(NAMED))[:number]
    unseen = np.flatnonzero(corpus.voices >= len(NAMED))[:number]
    return [*named.tolist(), *unseen.tolist()]


def keep_originals(kept: Kept, corpus: Corpus, number: int) -> None:
    """Keep the held-out speech itself."""
    for item in _items(corpus, number):
        kept.add(f"original-{corpus.voices[item]}-{item}", _audio(corpus, item), corpus.texts[item])


@torch.no_grad()
def keep_coded(kept: Kept, speaker: Speaker, corpus: Corpus, number: int) -> None:
    """Keep held-out speech through the codec."""
    items = _items(corpus, number)
    codes = [
        encode(speaker.ops, speaker.codec_weights, speaker.codec, _audio(corpus, item)[None])[0]
        for item in items
    ]
    for item, audio in zip(items, speaker.audio(codes), strict=True):
        kept.add(f"codec-{corpus.voices[item]}-{item}", audio, corpus.texts[item])


def keep_spoken(kept: Kept, speaker: Speaker, texts: list[str]) -> None:
    """Keep sentences that the talker says, by the named voices in turn; print their loudness."""
    texts = [*texts, *(text for text in _NAMES for _ in range(2))]
    names = [NAMED[number % len(NAMED)].name for number in range(len(texts))]
    made = speaker.audio(speaker.speak(texts, names, TextMode.FULL, Sampling()))
    levels: dict[str, list[float]] = {}
    for number, (name, text, audio) in enumerate(zip(names, texts, made, strict=True)):
        kept.add(f"spoken-{name}-{number}", audio, text)
        levels.setdefault(name, []).append(float(loudness(audio[None])[0]))
    for name, found in levels.items():
        print(f"{name}: {np.mean(found):.2f} LUFS")


def keep_clones(kept: Kept, speaker: Speaker, corpus: Corpus, number: int) -> None:
    """Keep clones of unseen speakers, and their clips."""
    unseen = np.flatnonzero((corpus.voices >= len(NAMED)) & (corpus.frames > _CLIP_FRAMES + 2))
    items = [int(item) for item in unseen[:number]]
    if not items:
        return
    part = slice(FRAME, (_CLIP_FRAMES + 1) * FRAME)
    vectors = speaker.embed_clips(torch.stack([_audio(corpus, item)[part] for item in items]))
    texts = [corpus.texts[len(items) - 1 - number] for number in range(len(items))]
    made = speaker.audio(speaker.speak(texts, vectors, TextMode.FULL, Sampling()))
    for item, text, audio in zip(items, texts, made, strict=True):
        kept.add(f"clone-{corpus.voices[item]}-{item}", audio, text)


def main() -> None:
    """Write OUT.npz and OUT.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="folder of izwi-tiny-tts")
    parser.add_argument("--number", type=int, default=24, help="sentences of each kind")
    parser.add_argument(
        "--kinds", nargs="+", choices=("originals", "codec", "spoken", "clones"), required=True
    )
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus, kept = Corpus(args.data, "heldout", device), Kept()
    if "originals" in args.kinds:
        keep_originals(kept, corpus, args.number)
    if args.checkpoint:
        speaker = Speaker(args.checkpoint, device)
        if "codec" in args.kinds:
            keep_coded(kept, speaker, corpus, args.number)
        if "spoken" in args.kinds:
            keep_spoken(kept, speaker, corpus.texts[: args.number])
        if "clones" in args.kinds:
            keep_clones(kept, speaker, corpus, args.number)
    kept.write(args.out)


if __name__ == "__main__":
    main()
