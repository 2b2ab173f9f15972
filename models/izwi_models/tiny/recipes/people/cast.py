"""The speakers of the embedded voice's corpus: eight with names, and many for learning to clone.

A speaker is a mixture of Kokoro's style tables for the timbre and another for the prosody, moved by
a vector of its own, with a pitch, a vocal tract and a pace. Unlike the speakers of
`kokoro_voices.draw_speakers`, one says many utterances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from izwi_models.tiny.recipes.people.kokoro import TIMBRE
from izwi_models.tiny.recipes.people.kokoro_voices import Speakers, draw_mixtures
from izwi_models.tiny.recipes.voices import NAMED, all_voices

TABLES = ("jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")
_MAN = TABLES.index("jm_kumo")
_MALE_SHARE = 0.45
_BRITISH_SHARE = 0.2
_MOVED = (0.1, 0.4)  # standard deviation of what is added, relative to that between tables
FIRST_DRAWN = len(all_voices())  # numbers below are espeak-ng's voices, but for the named ones
DRAWN = 1200
HELDOUT = 40  # the last of the drawn ones, which are never trained on
FIRST_FLITE = FIRST_DRAWN + DRAWN


@dataclass(frozen=True, slots=True)
class Part:
    """A named speaker.

    Attributes:
        name: Of the voice in the checkpoint.
        timbre: Shares of `TABLES`.
        prosody: The same.
        pitch: Factor of the pitch of the prosody.
        warp: Factor of all frequencies, as of a shorter vocal tract.
        pace: Speed.
        british: Whether it has British phonemes.
    """

    name: str
    timbre: tuple[float, ...]
    prosody: tuple[float, ...]
    pitch: float
    warp: float
    pace: float
    british: bool = False


PARTS = (
    Part("amber", (0.4, 0.1, 0.5, 0, 0), (0.3, 0, 0.7, 0, 0), 0.92, 1.0, 1.0),
    Part("basil", (0.2, 0, 0.1, 0, 0.7), (0, 0, 0, 0, 1), 1.3, 1.03, 0.97, british=True),
    Part("clara", (0, 0.7, 0.3, 0, 0), (0, 1, 0, 0, 0), 0.95, 1.0, 0.97, british=True),
    Part("dorian", (0, 0, 0.15, 0.2, 0.65), (0, 0, 0, 0, 1), 1.18, 0.93, 0.97),
    Part("edith", (0.1, 0.5, 0, 0.4, 0), (0, 0.8, 0, 0.2, 0), 0.82, 0.94, 0.95),
    Part("felix", (0, 0, 0.3, 0, 0.7), (0, 0, 0, 0, 1), 1.5, 1.05, 1.06),
    Part("greta", (0, 0, 0.8, 0.2, 0), (0, 0, 1, 0, 0), 1.1, 1.06, 1.04),
    Part("hugo", (0, 0, 0, 0.25, 0.75), (0, 0, 0, 0, 1), 1.3, 0.97, 1.0),
)
assert [part.name for part in PARTS] == [voice.name for voice in NAMED]


@dataclass(frozen=True, slots=True)
class Cast:
    """Speakers by number.

    Attributes:
        timbre: (n, tables) shares.
        prosody: (n, tables) shares.
        moved: (n, 256) in standard deviations between the tables.
        pitch: (n,) factor.
        range: (n,) factor of the pitch's movement.
        warp: (n,) factor of all frequencies.
        pace: (n,) speed.
        british: (n,) bool.
    """

    timbre: Tensor
    prosody: Tensor
    moved: Tensor
    pitch: Tensor
    range: Tensor
    warp: Tensor
    pace: Tensor
    british: Tensor

    def speakers(self, tables: dict[str, Tensor], numbers: Tensor, counts: Tensor) -> Speakers:
        """Let speakers say utterances.

        Args:
            tables: From `kokoro_voices.style_tables`.
            numbers: (rows,) who speaks.
            counts: (rows,) phonemes of each.
        """
        stacked = torch.stack([tables[name] for name in TABLES])[:, counts.clamp_max(509)]
        styles = stacked.std(0) * self.moved[numbers]
        for part, shares in (
            (slice(0, TIMBRE), self.timbre),
            (slice(TIMBRE, None), self.prosody),
        ):
            styles[:, part] += (shares[numbers].T[..., None] * stacked[..., part]).sum(0)
        plain = torch.zeros(len(numbers))  # neither uneven nor slurred: it is to be clear
        return Speakers(
            styles,
            pitch=self.pitch[numbers],
            range=self.range[numbers],
            warp=self.warp[numbers],
            pace=self.pace[numbers],
            unevenness=plain,
            wander=plain,
            slur=plain,
        )


def draw_cast(seed: int = 11) -> Cast:
    """Return the named speakers as 0 to 7, nobody up to `FIRST_DRAWN`, then the drawn ones."""
    generator = torch.Generator().manual_seed(seed)
    males = torch.rand(DRAWN, generator=generator) < _MALE_SHARE
    men = torch.arange(len(TABLES)) == _MAN
    timbre, prosody = (draw_mixtures(DRAWN, males, men, generator) for _ in range(2))
    far = _MOVED[0] + (_MOVED[1] - _MOVED[0]) * torch.rand(DRAWN, 1, generator=generator)
    moved = torch.randn(DRAWN, 2 * TIMBRE, generator=generator) * far

    def about(centre: float, spread: float, least: float, most: float) -> Tensor:
        drawn = centre + spread * torch.randn(DRAWN, generator=generator)
        return drawn.clamp(least, most)

    drawn = Cast(
        timbre,
        prosody,
        moved,
        pitch=2 ** about(-0.1, 0.3, -0.8, 0.6),
        range=about(1.0, 0.2, 0.5, 1.5),
        warp=2 ** about(0.0, 0.13, -0.3, 0.3),
        pace=about(1.0, 0.1, 0.8, 1.25),
        british=torch.rand(DRAWN, generator=generator) < _BRITISH_SHARE,
    )
    return _joined(_named(), drawn)


def _named() -> Cast:
    def shares(rows: list[tuple[float, ...]]) -> Tensor:
        weights = torch.tensor(rows, dtype=torch.float32)
        return weights / weights.sum(1, keepdim=True)

    values = [torch.tensor([getattr(p, key) for p in PARTS]) for key in ("pitch", "warp", "pace")]
    return Cast(
        shares([part.timbre for part in PARTS]),
        shares([part.prosody for part in PARTS]),
        torch.zeros(len(PARTS), 2 * TIMBRE),
        values[0],
        torch.ones(len(PARTS)),
        values[1],
        values[2],
        torch.tensor([part.british for part in PARTS]),
    )


def _joined(named: Cast, drawn: Cast) -> Cast:
    """Put the drawn speakers after a gap in which the first named one stands."""
    between = torch.zeros(FIRST_DRAWN - len(PARTS), dtype=torch.long)
    rows = torch.cat([torch.arange(len(PARTS)), between])
    names = ("timbre", "prosody", "moved", "pitch", "range", "warp", "pace", "british")
    return Cast(*(torch.cat([getattr(named, n)[rows], getattr(drawn, n)]) for n in names))
