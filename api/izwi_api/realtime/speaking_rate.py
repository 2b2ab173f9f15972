"""How fast a voice speaks, learned from the answers that it has spoken to their ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

# Of the embedded and the published voices alike, before anything is known.
CHARACTERS_PER_S = 15.0
# Sound that the assumption above counts as, beside the sound that was spoken.
_ASSUMED_S = 1.0
# What was spoken longer ago counts less and less: texts differ.
_REMEMBERED_S = 120.0


@dataclass(slots=True)
class _Spoken:
    characters: float = CHARACTERS_PER_S * _ASSUMED_S
    duration_s: float = _ASSUMED_S


@dataclass(slots=True)
class SpeakingRates:
    """The rates of the voices of one session, in characters a second at the speed 1."""

    _spoken: dict[str | None, _Spoken] = field(default_factory=dict)

    def of(self, voice: str | None) -> float:
        """Return the rate of a voice."""
        spoken = self._spoken.get(voice, _Spoken())
        return spoken.characters / spoken.duration_s

    def learn(self, voice: str | None, text: str, duration_s: float) -> None:
        """Take an answer whose whole text was spoken.

        Args:
            voice: Of the answer.
            text: The same.
            duration_s: Of its sound at the speed 1; 0 is left out.
        """
        if not text or duration_s <= 0.0:
            return
        spoken = self._spoken.setdefault(voice, _Spoken())
        spoken.characters += len(text)
        spoken.duration_s += duration_s
        kept = min(1.0, _REMEMBERED_S / spoken.duration_s)
        spoken.characters *= kept
        spoken.duration_s *= kept
