"""Speakers for Kokoro: mixtures of its style tables, moved, with other pitches and vocal tracts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi_models.tiny.recipes.people.kokoro import TIMBRE

_MIXED = 0.7  # concentration of the mixtures: below 1, one table prevails
_MALE_SHARE = 0.4  # of speakers in whom the man's table prevails
_MOVED = (0.1, 0.5)  # standard deviation of what is added, relative to that between tables
_MEN = ("jm_kumo",)
_VOICED_HZ = 40.0


def style_tables(folder: Path) -> dict[str, Tensor]:
    """Read the tables in the package's data folder: (510, 256) float32 by name.

    A table has a row for each number of phonemes.
    """
    with np.load(folder / "voices_ja.npz") as file:
        return {name: torch.from_numpy(file[name][:, 0].astype(np.float32)) for name in file}


@dataclass(frozen=True, slots=True)
class Speakers:
    """One speaker a row.

    Attributes:
        styles: (rows, 256).
        pitch: (rows,) factor of the pitch that the style has.
        range: (rows,) factor of its movement, on a logarithmic scale.
        warp: (rows,) factor of all frequencies, as of a shorter vocal tract.
        pace: (rows,) speed.
        unevenness: (rows,) standard deviation of phonemes' durations, in octaves.
        wander: (rows,) standard deviation of slow movements of the pitch, in octaves.
        slur: (rows,) how much of its neighbours each frame's sound takes.
    """

    styles: Tensor
    pitch: Tensor
    range: Tensor
    warp: Tensor
    pace: Tensor
    unevenness: Tensor
    wander: Tensor
    slur: Tensor


def draw_mixtures(rows: int, male: Tensor, men: Tensor, generator: torch.Generator) -> Tensor:
    """Draw weights (rows, tables) that add up to 1.

    Args:
        rows: How many.
        male: (rows,) whether a man's table is to prevail.
        men: (tables,) whether a table is a man's.
        generator: On the CPU.
    """
    draws = torch.rand(rows, len(men), generator=generator).clamp_min(1e-6)
    weights = (-draws.log()) ** (1 / _MIXED)
    prevails = men[None] == male[:, None]
    weights = weights * torch.where(prevails, 1.0, 0.15)
    return weights / weights.sum(1, keepdim=True)


def draw_speakers(
    tables: dict[str, Tensor], counts: Tensor, generator: torch.Generator
) -> Speakers:
    """Draw a speaker for each utterance.

    Args:
        tables: From `style_tables`.
        counts: (rows,) phonemes of each.
        generator: On the CPU.
    """
    rows = len(counts)
    men = torch.tensor([name in _MEN for name in tables])
    stacked = torch.stack(list(tables.values()))[:, counts.clamp_max(509)]  # tables, rows, 256
    male = torch.rand(rows, generator=generator) < _MALE_SHARE
    styles = torch.empty(rows, stacked.shape[2])
    for part in (slice(0, TIMBRE), slice(TIMBRE, None)):
        weights = draw_mixtures(rows, male, men, generator)
        mixed = (weights.T[..., None] * stacked[..., part]).sum(0)
        apart = stacked[..., part].std(0)
        far = _MOVED[0] + (_MOVED[1] - _MOVED[0]) * torch.rand(rows, 1, generator=generator)
        moved = torch.randn(mixed.shape, generator=generator) * apart * far
        styles[:, part] = mixed + moved

    def about(centre: float, spread: float, least: float, most: float) -> Tensor:
        return (centre + spread * torch.randn(rows, generator=generator)).clamp(least, most)

    return Speakers(
        styles,
        pitch=2 ** about(0.0, 0.25, -0.6, 0.6),
        range=about(1.0, 0.25, 0.4, 1.7),
        warp=2 ** about(0.0, 0.13, -0.3, 0.3),
        pace=about(1.0, 0.16, 0.7, 1.5),
        unevenness=about(0.15, 0.12, 0.0, 0.4),
        wander=about(0.08, 0.08, 0.0, 0.25),
        slur=about(0.1, 0.15, 0.0, 0.5),
    )


def uneven(durations: Tensor, octaves: Tensor) -> Tensor:
    """Make phonemes longer and shorter at random; those next to each other alike, in part.

    Kokoro reads everything in an even pace, people do not.

    Args:
        durations: (rows, phonemes) int64 frames; 0 is padding.
        octaves: (rows,) standard deviation.

    Returns:
        (rows, phonemes) int64, at least 1 where there was a phoneme.
    """
    noise = torch.randn(len(durations), 2, durations.shape[1] + 4, device=durations.device)
    slow = noise[:, 1].unfold(1, 5, 1).sum(2) / math.sqrt(5)
    moved = (noise[:, 0, : durations.shape[1]] + slow) * math.sqrt(0.5) * octaves[:, None]
    made = (durations * 2**moved + torch.rand_like(moved)).floor().long()
    return made.clamp_min(1) * (durations > 0)


def slow_noise(rows: int, steps: int, period: int, device: torch.device) -> Tensor:
    """Make noise (rows, steps) of level 1 that changes slowly.

    Args:
        rows: How many.
        steps: How long.
        period: Steps between two independent values.
        device: Where it is made.
    """
    points = torch.randn(rows, 1, steps // period + 2, device=device)
    curve = F.interpolate(points, steps + period, mode="linear")[:, 0, :steps]
    return curve * math.sqrt(1.5)  # what the interpolation takes


def slurred(sound: Tensor, share: Tensor) -> Tensor:
    """Mix frames (rows, frames, width) with the ones before and after, by a share (rows,)."""
    padded = F.pad(sound.mT, (1, 1), "replicate").mT
    neighbours = (padded[:, :-2] + padded[:, 2:]) / 2
    return torch.lerp(sound, neighbours, share[:, None, None].to(sound.dtype))


def moved_pitch(hertz: Tensor, factor: Tensor, spread: Tensor) -> Tensor:
    """Move the pitch (rows, steps) by a factor (rows,), and its distances from the median."""
    voiced = hertz > _VOICED_HZ
    logs = hertz.clamp_min(1.0).log2()
    middle = logs.masked_fill(~voiced, float("nan")).nanmedian(1, keepdim=True).values
    middle = torch.nan_to_num(middle, nan=7.0)
    moved = 2 ** (middle + (logs - middle) * spread[:, None]) * factor[:, None]
    return torch.where(voiced, moved.clamp(50.0, 600.0), hertz)


def resampled(audio: Tensor, factor: Tensor, taps: int = 16) -> Tensor:
    """Play each row of (rows, n) faster by its factor (rows,), by windowed sincs: (rows, most).

    Rows are as long as the slowest one's; what comes after the others is silence.
    """
    rows, count = audio.shape
    most = int(count / float(factor.min())) + 1
    at = torch.arange(most, device=audio.device) * factor[:, None]
    whole = at.floor()
    rest = (at - whole)[..., None]
    offsets = torch.arange(taps, device=audio.device) - taps // 2 + 1
    away = rest - offsets
    kernel = torch.sinc(away) * torch.cos(away * (torch.pi / (taps + 1))).square()
    index = (whole.long()[..., None] + offsets + taps).clamp(0, count + 2 * taps - 1)
    padded = torch.nn.functional.pad(audio, (taps, taps))
    made = torch.zeros(rows, most, device=audio.device)
    for tap in range(taps):
        made += padded.gather(1, index[..., tap]) * kernel[..., tap]
    return made * (at < count)
