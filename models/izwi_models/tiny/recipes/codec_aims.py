"""What the codec is pulled towards beside the spectra, and the command's options for it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

HARMONIC_BANDS_HZ = ((1000.0, 2000.0), (2000.0, 3000.0), (3000.0, 4000.0))


@dataclass(frozen=True, slots=True)
class Aims:
    """What the codec is pulled towards beside the spectra.

    Attributes:
        low_band: Weight of the low band's wave.
        cutoff_hz: Where that band ends.
        adversary: Weight of the discriminators.
        adversary_from: Share of the time after which they join; 1 is never.
        gaps: Weight of the sound in silence.
        perception: Weight of what a transcriber hears differently, where there is one.
        periodicity: Weight of harmonics that are noise, in the bands of `HARMONIC_BANDS_HZ`.
    """

    low_band: float
    cutoff_hz: float
    adversary: float
    adversary_from: float
    gaps: float = 10.0
    perception: float = 1.5
    periodicity: float = 0.0


def take_aims(parser: argparse.ArgumentParser) -> None:
    """Add an option for each aim."""
    parser.add_argument("--low-band", type=float, default=2.0, help="see Aims, as all of these")
    parser.add_argument("--cutoff", type=float, default=600.0)
    parser.add_argument("--adversary", type=float, default=0.5)
    parser.add_argument("--adversary-from", type=float, default=1.0)
    parser.add_argument("--gaps", type=float, default=10.0)
    parser.add_argument("--perception", type=float, default=1.5)
    parser.add_argument("--periodicity", type=float, default=0.0)


def aims_of(args: argparse.Namespace) -> Aims:
    """Return what was asked for."""
    return Aims(
        low_band=args.low_band,
        cutoff_hz=args.cutoff,
        adversary=args.adversary,
        adversary_from=args.adversary_from,
        gaps=args.gaps,
        perception=args.perception,
        periodicity=args.periodicity,
    )
