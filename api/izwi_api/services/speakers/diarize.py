"""Tell the speakers of a recording apart: speech detection, speaker vectors, clusters, turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from izwi.arrays import Float32, Samples
from izwi.audio.decoded_audio import within_full_scale
from izwi.audio.speech_regions import RegionRules, speech_regions
from izwi.errors import InvalidRequest
from izwi.host.threads import compute
from izwi.model.frontend import TranscriptionFrontend
from izwi_api.services.speakers.clusters import match_known, unit
from izwi_api.services.speakers.encoder import SAMPLE_RATE, SpeakerEncoder
from izwi_api.services.speakers.online import letters_without
from izwi_api.services.speakers.timeline import Turn, label_turns, speech_windows
from izwi_api.services.transcription.transcribe import SpokenPiece

# Cosine of two voices' vectors below which they are different ones. Chosen for the embedded
# encoder on mixtures of synthetic voices (benchmarks/asr/diarization.py).
THRESHOLD = 0.45
# Audio before a turn that is transcribed with it, as in OpenAI's server_vad.
PADDING_S = 0.3
_RULES = RegionRules()
_REFERENCE_S = (2.0, 10.0)


@dataclass(frozen=True, slots=True)
class KnownSpeaker:
    """A speaker with a name.

    Attributes:
        samples: (n,) of a clip at 16 kHz, 2 to 10 s.
    """

    name: str
    samples: Float32


@dataclass(frozen=True, slots=True)
class DiarizationOptions:
    """How speakers are told apart.

    Attributes:
        known: Speakers with names.
        threshold: See `THRESHOLD`.
        rules: What counts as speech.
        padding_s: Audio before each turn that is transcribed with it.
    """

    known: Sequence[KnownSpeaker] = ()
    threshold: float = THRESHOLD
    rules: RegionRules = _RULES
    padding_s: float = PADDING_S


def check_reference(samples: Float32, param: str) -> None:
    """Raise InvalidRequest if a known speaker's clip is shorter than 2 s or longer than 10 s."""
    least_s, most_s = _REFERENCE_S
    length_s = len(samples) / SAMPLE_RATE
    if not least_s <= length_s <= most_s:
        raise InvalidRequest(
            f"a reference has {least_s:.0f} to {most_s:.0f} s; one has {length_s:.1f} s",
            param=param,
        )


async def diarize(
    encoder: SpeakerEncoder, samples: Samples, options: DiarizationOptions
) -> tuple[list[Turn], list[str]]:
    """Return the turns of a recording by start, and the name of each speaker.

    Args:
        encoder: Computes the speaker vectors.
        samples: (n,) at 16 kHz.
        options: How speakers are told apart.

    Raises:
        IzwiError: The engine failed.
    """
    samples = within_full_scale(samples)
    regions = await compute(speech_regions, samples, options.rules)
    windows = speech_windows(regions, len(samples))
    vectors = await encoder.encode([samples[w.start : w.stop] for w in windows])
    turns, found = await compute(label_turns, regions, windows, vectors, options.threshold)
    known = await known_vectors(encoder, options.known)
    matches = match_known(found, known, options.threshold)
    return turns, speaker_names(len(found), matches, [one.name for one in options.known])


async def known_vectors(encoder: SpeakerEncoder, known: Sequence[KnownSpeaker]) -> list[Float32]:
    """Return a vector of each known speaker, the mean over windows as long as a recording's."""
    vectors = []
    for one in known:
        regions = await compute(speech_regions, one.samples)
        regions = regions or [(0, len(one.samples))]
        windows = speech_windows(regions, len(one.samples))
        each = await encoder.encode([one.samples[w.start : w.stop] for w in windows])
        vectors.append(unit(each).mean(axis=0).astype("float32"))
    return vectors


def speaker_names(count: int, matches: Mapping[int, int], known: Sequence[str]) -> list[str]:
    """Return the name of each speaker: that of a known one, or the next of A, B, ... Z, AA, ..."""
    letters = letters_without(known)
    return [
        known[matches[speaker]] if speaker in matches else next(letters) for speaker in range(count)
    ]


def spoken_pieces(
    model: TranscriptionFrontend,
    samples: Samples,
    turns: Sequence[Turn],
    names: Sequence[str],
    padding_s: float,
) -> list[SpokenPiece]:
    """Return the pieces to transcribe: each turn, cut where the model needs it shorter.

    A turn begins up to `padding_s` earlier and ends a little later, but not within the turn of
    another speaker that it did not overlap.
    """
    pieces = []
    for place, turn in enumerate(turns):
        before = max((t.stop for t in turns[:place] if t.stop <= turn.start), default=0)
        after = min((t.start for t in turns[place + 1 :] if t.start >= turn.stop), default=None)
        after = len(samples) if after is None else after
        start = max(before, turn.start - int(padding_s * SAMPLE_RATE), 0)
        stop = min(after, turn.stop + int(_AFTER_S * SAMPLE_RATE), len(samples))
        pieces += [
            SpokenPiece(start + a, start + b, names[turn.speaker])
            for a, b in model.split_audio(samples[start:stop])
        ]
    return pieces


# Transcribers take the end of a word for the middle of another with less behind it.
_AFTER_S = 0.25
