"""Weights of the codec's losses besides the spectral one, and their command-line options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

HARMONIC_BANDS_HZ = ((1000.0, 2000.0), (2000.0, 3000.0), (3000.0, 4000.0))


@dataclass(frozen=True, slots=True)
class Aims:
    """Weights of the codec's losses besides the spectral one.

    Attributes:
        low_band: Weight of the low band's waveform.
        cutoff_hz: Upper edge of that band.
        adversary: Weight of the discriminators.
        adversary_from: Share of the training time after which they start; 1 is never.
        gaps: Weight of the output level in silence.
        perception: Weight of the perceptual loss, if a transcriber is given.
        periodicity: Weight of noise in place of harmonics, in the bands of `HARMONIC_BANDS_HZ`.
        phones: Weight of phonemes that a classifier confuses in the codec's speech.
    """

    low_band: float
    cutoff_hz: float
    adversary: float
    adversary_from: float
    gaps: float = 10.0
    perception: float = 1.5
    periodicity: float = 0.0
    phones: float = 0.0


def take_aims(parser: argparse.ArgumentParser) -> None:
    """Add an option for each aim."""
    parser.add_argument("--low-band", type=float, default=2.0, help="see Aims, as all of these")
    parser.add_argument("--cutoff", type=float, default=600.0)
    parser.add_argument("--adversary", type=float, default=0.5)
    parser.add_argument("--adversary-from", type=float, default=1.0)
    parser.add_argument("--gaps", type=float, default=10.0)
    parser.add_argument("--perception", type=float, default=1.5)
    parser.add_argument("--periodicity", type=float, default=0.0)
    parser.add_argument("--phones", type=float, default=0.0)


def aims_of(args: argparse.Namespace) -> Aims:
    """Return the aims that the options state."""
    return Aims(
        low_band=args.low_band,
        cutoff_hz=args.cutoff,
        adversary=args.adversary,
        adversary_from=args.adversary_from,
        gaps=args.gaps,
        perception=args.perception,
        periodicity=args.periodicity,
        phones=args.phones,
    )
