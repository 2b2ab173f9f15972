"""How fast a voice speaks, learned from the answers that it has spoken to their ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

# Initial assumption, for the embedded and the published voices.
CHARACTERS_PER_S = 15.0
# Seconds of audio as which the assumption counts, besides the audio that was spoken.
_ASSUMED_S = 1.0
# Older audio counts less, because texts differ.
_REMEMBERED_S = 120.0


@dataclass(slots=True)
class _Spoken:
    characters: float = CHARACTERS_PER_S * _ASSUMED_S
    duration_s: float = _ASSUMED_S


@dataclass(slots=True)
class SpeakingRates:
    """The rates of the voices of one session, in characters a second at the speed 1."""

    _spoken: dict[str | None, _Spoken] = field(default_factory=dict)

    def rate(self, voice: str | None) -> float:
        """Return the rate of a voice."""
        spoken = self._spoken.get(voice, _Spoken())
        return spoken.characters / spoken.duration_s

    def learn(self, voice: str | None, text: str, duration_s: float) -> None:
        """Learn from an answer whose whole text was spoken.

        Args:
            voice: Voice of the answer.
            text: Text of the answer.
            duration_s: Seconds of its audio at speed 1; 0 is ignored.
        """
        if not text or duration_s <= 0.0:
            return
        spoken = self._spoken.setdefault(voice, _Spoken())
        spoken.characters += len(text)
        spoken.duration_s += duration_s
        kept = min(1.0, _REMEMBERED_S / spoken.duration_s)
        spoken.characters *= kept
        spoken.duration_s *= kept
