"""Augmentation for transcribers: noise, rooms, telephones, and audio without speech.

All functions draw from the device's generator and read no values back, so that a training step that
calls them can be captured.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

RATE = 16_000
_TAIL = 8192  # samples that a room's reverberation lasts at most
_NOTES = 5
_PARTIALS = 4


def draw(low: float, high: float, rows: int, *shape: int, device: torch.device) -> Tensor:
    """Draw uniform numbers, (rows, *shape)."""
    return low + (high - low) * torch.rand(rows, *shape, device=device)


def level(audio: Tensor) -> Tensor:
    """Compute the root mean square of each row, (rows, 1)."""
    return audio.square().mean(1, keepdim=True).add(1e-12).sqrt()


def coloured_noise(rows: int, samples: int, device: torch.device) -> Tensor:
    """Make noise (rows, samples) of level 1; its power falls with f^0 (white) to f^2 (brown)."""
    frequencies = torch.arange(samples // 2 + 1, device=device).clamp_min(20)
    shape = frequencies.float() ** -(draw(0, 2, rows, 1, device=device) / 2)
    spectrum = torch.fft.rfft(torch.randn(rows, samples, device=device)) * shape
    noise = torch.fft.irfft(spectrum, samples)
    return noise / level(noise)


def babble(audio: Tensor, speakers: int = 5) -> Tensor:
    """Add up the speech of other rows, at level 1: (rows, samples)."""
    mixed = torch.zeros_like(audio)
    for speaker in range(1, speakers + 1):
        mixed = mixed + audio.roll((speaker, 3001 * speaker), (0, 1))
    return mixed / level(mixed)


def through_rooms(audio: Tensor) -> Tensor:
    """Add room reverberation to a third of the rows, and a telephone's band limits to a fifth."""
    rows, samples, device = *audio.shape, audio.device
    size = samples + _TAIL
    time = torch.arange(_TAIL, device=device) / RATE
    decay = draw(0.12, 0.5, rows, 1, device=device)  # seconds until it is 60 dB down
    tail = torch.randn(rows, _TAIL, device=device) * torch.exp(-6.9 * time / decay)
    tail = tail / tail.norm(dim=1, keepdim=True) * draw(0.2, 1.0, rows, 1, device=device)
    tail = tail * (draw(0, 1, rows, 1, device=device) < 0.35)
    tail[:, 0] = 1.0
    low, high = (draw(a, b, rows, 1, device=device) for a, b in ((200, 400), (3000, 3600)))
    frequencies = torch.fft.rfftfreq(size, 1 / RATE, device=device)
    band = torch.sigmoid((frequencies - low) / 30) * torch.sigmoid((high - frequencies) / 60)
    wide = draw(0, 1, rows, 1, device=device) > 0.2
    band = torch.where(wide, torch.ones_like(band), band)
    spectrum = torch.fft.rfft(audio, size) * torch.fft.rfft(tail, size) * band
    return torch.fft.irfft(spectrum, size)[:, :samples]


def through_channels(audio: Tensor) -> Tensor:
    """Colour (rows, samples) of speech at 16 kHz as microphones, lines and codecs do.

    Half of the rows lose what is above a limit, often that of a telephone; most have a tilt and
    resonances; a few are clipped, or have the 8 bits of a telephone line.
    """
    rows, samples, device = *audio.shape, audio.device

    def chance(share: float) -> Tensor:
        return draw(0, 1, rows, 1, device=device) < share

    frequencies = torch.fft.rfftfreq(samples, 1 / RATE, device=device)
    octaves = (frequencies.clamp_min(60) / 1000).log2()
    gain_db = draw(-5, 3, rows, 1, device=device) * octaves
    for _ in range(3):
        centre, width = (
            draw(-3.3, 3, rows, 1, device=device),
            draw(0.2, 1.5, rows, 1, device=device),
        )
        height_db = draw(-9, 9, rows, 1, device=device)
        gain_db = gain_db + height_db * torch.exp(-(((octaves - centre) / width) ** 2))
    gain_db = gain_db * chance(0.75)
    limit = torch.where(
        chance(0.6),
        draw(3300, 4000, rows, 1, device=device),
        draw(4000, 7800, rows, 1, device=device),
    )
    edge = 10 ** draw(1.0, 2.3, rows, 1, device=device)
    limit = torch.where(chance(0.5), limit, torch.full_like(limit, 1e5))
    floor = torch.where(chance(0.4), draw(50, 350, rows, 1, device=device), torch.zeros_like(limit))
    band = torch.sigmoid((limit - frequencies) / edge) * torch.sigmoid(
        (frequencies - floor) / 25 + 4
    )
    spectrum = torch.fft.rfft(audio) * band * 10 ** (gain_db / 20)
    made = torch.fft.irfft(spectrum, samples)
    loudest = made.abs().amax(1, keepdim=True).clamp_min(1e-5)
    made = made / loudest
    clipped = torch.maximum(
        torch.minimum(made, draw(0.2, 0.9, rows, 1, device=device)),
        -draw(0.2, 0.9, rows, 1, device=device),
    )
    made = torch.where(chance(0.08), clipped, made)
    curve = 255.0
    coded = made.sign() * torch.log1p(curve * made.abs().clamp_max(1)) / math.log1p(curve)
    coded = (coded * 127).round() / 127
    coarse = coded.sign() * torch.expm1(coded.abs() * math.log1p(curve)) / curve
    made = torch.where(chance(0.2), coarse, made)
    return made * loudest.clamp(0.05, 1)


def disturbed(audio: Tensor) -> Tensor:
    """Add rooms, noise and babble to (rows, samples) of speech at 16 kHz, at random levels."""
    rows, samples, device = *audio.shape, audio.device

    def chance(share: float) -> Tensor:
        return draw(0, 1, rows, 1, device=device) < share

    speech = through_rooms(audio)
    loud = level(speech)
    noise = coloured_noise(rows, samples, device) * 10 ** (
        -draw(5, 45, rows, 1, device=device) / 20
    )
    others = babble(audio) * 10 ** (-draw(5, 30, rows, 1, device=device) / 20)
    speech = speech + loud * (noise * chance(0.55) + others * chance(0.15))
    return speech * 10 ** draw(-1.2, 0.1, rows, 1, device=device)


def _music(rows: int, samples: int, device: torch.device) -> Tensor:
    """Make plucked chords of five notes that change a few times a second: (rows, samples)."""
    time = torch.arange(samples, device=device) / RATE
    beat = draw(0.15, 0.8, rows, 1, device=device)
    bar = (time / beat).long()
    since = time - bar * beat
    made = torch.zeros(rows, samples, device=device)
    table = torch.randint(-24, 25, (rows, _NOTES, 256), device=device)
    for note in range(_NOTES):
        pitch = table[:, note].gather(1, bar.clamp_max(255))
        hertz = 261.6 * 2 ** (pitch / 12)
        for partial in range(1, _PARTIALS + 1):
            wave = torch.sin(2 * math.pi * partial * hertz * since)
            made = made + wave * torch.exp(-since * (1 + partial)) / partial
    return made / level(made)


def _hum(rows: int, samples: int, device: torch.device) -> Tensor:
    """Make mains hum, or another steady tone, with harmonics: (rows, samples)."""
    time = torch.arange(samples, device=device) / RATE
    mains = 50.0 + 10.0 * (draw(0, 1, rows, 1, device=device) < 0.5)
    any_tone = 10 ** draw(1.8, 3.6, rows, 1, device=device)
    hertz = torch.where(draw(0, 1, rows, 1, device=device) < 0.6, mains, any_tone)
    made = torch.zeros(rows, samples, device=device)
    for partial in range(1, 7):
        strength = draw(0, 1, rows, 1, device=device) / partial
        made = made + strength * torch.sin(2 * math.pi * partial * hertz * time)
    return made / level(made)


def _beeps(rows: int, samples: int, device: torch.device) -> Tensor:
    """Make one or two tones that switch on and off: telephones, alarms, timers, dialled digits.

    Some rows change the tones at each beep, some have hard edges, some trill.
    """
    time = torch.arange(samples, device=device) / RATE
    period = 10 ** draw(-1.0, 0.78, rows, 1, device=device)  # seconds
    place = time / period + draw(0, 1, rows, 1, device=device)
    is_new = draw(0, 1, rows, 1, device=device) < 0.3
    beep = (place.floor().long() * is_new).remainder(64)
    made = torch.zeros(rows, samples, device=device)
    for low, high, least in ((300, 1000, 1.0), (440, 3000, 0.0)):
        hertz = (low * (high / low) ** torch.rand(rows, 64, device=device)).gather(1, beep)
        strength = draw(least, 1, rows, 1, device=device)
        strength = strength * (draw(0, 1, rows, 1, device=device) < 0.7 + 0.3 * least)
        made = made + strength * torch.sin(2 * math.pi * hertz * time)
    share, edge = draw(0.1, 0.9, rows, 1, device=device), 10 ** draw(-4, -2, rows, 1, device=device)
    since = place.frac() * period
    is_on = torch.sigmoid((share * period - since) / edge) * torch.sigmoid((since - edge) / edge)
    pace = draw(8, 30, rows, 1, device=device)
    trill = torch.sigmoid(40 * torch.sin(2 * math.pi * pace * time))
    trills = draw(0, 1, rows, 1, device=device) < 0.25
    made = made * is_on * torch.where(trills, trill, torch.ones_like(trill))
    return made / level(made)


def _clicks(rows: int, samples: int, device: torch.device) -> Tensor:
    """Make sparse impulses that ring for some milliseconds: (rows, samples)."""
    rare = 10 ** draw(-4.6, -3.2, rows, 1, device=device)
    hits = (torch.rand(rows, samples, device=device) < rare) * torch.randn(
        rows, samples, device=device
    )
    time = torch.arange(2048, device=device) / RATE
    ring = torch.exp(-time / 10 ** draw(-3.3, -1.7, rows, 1, device=device))
    ring = ring * torch.cos(2 * math.pi * 10 ** draw(2, 3.7, rows, 1, device=device) * time)
    size = samples + 2048
    made = torch.fft.irfft(torch.fft.rfft(hits, size) * torch.fft.rfft(ring, size), size)
    return made[:, :samples] / (made.abs().amax(1, keepdim=True) + 1e-3)


def _coughs(rows: int, samples: int, device: torch.device) -> Tensor:
    """Make bursts of resonant noise, one or several: coughs, breaths, throat clearing."""
    time = torch.arange(samples, device=device) / RATE
    period = 10 ** draw(-0.7, 0.5, rows, 1, device=device)  # seconds
    place = time / period + draw(0, 1, rows, 1, device=device)
    burst = place.floor().long().remainder(64)
    since = place.frac() * period
    comes = (torch.rand(rows, 64, device=device) < draw(0.2, 1, rows, 1, device=device)).float()
    lasting = draw(0.04, 0.45, rows, 1, device=device) * (
        0.6 + 0.8 * torch.rand(rows, 64, device=device)
    )
    attack = 10 ** draw(-2.7, -1.2, rows, 1, device=device)
    rest = since / lasting.gather(1, burst)
    shape = (since / attack).clamp_max(1) * (1 - rest).clamp_min(0)
    shape = shape ** draw(0.5, 2.5, rows, 1, device=device) * comes.gather(1, burst)
    frequencies = torch.fft.rfftfreq(samples, 1 / RATE, device=device)
    band = torch.full((rows, len(frequencies)), 0.02, device=device)
    for low, high in ((2.4, 3.2), (2.9, 3.5), (3.3, 3.8)):
        hertz, width = (10 ** draw(a, b, rows, 1, device=device) for a, b in ((low, high), (2, 3)))
        strength = draw(0, 1, rows, 1, device=device)
        band = band + strength / (1 + ((frequencies - hertz) / width) ** 2)
    noise = torch.fft.rfft(coloured_noise(rows, samples, device)) * band
    made = torch.fft.irfft(noise, samples)
    return made / level(made) * shape


def no_speech(rows: int, samples: int, device: torch.device) -> Tensor:
    """Make audio without speech, (rows, samples) at 16 kHz: noise, music, hum, beeps, silence."""
    time = torch.arange(samples, device=device) / RATE
    pace = 10 ** draw(-0.7, 0.9, rows, 1, device=device)
    waving = 0.5 + 0.5 * torch.sin(2 * math.pi * pace * time)
    steady = draw(0, 1, rows, 1, device=device) < 0.5
    noise = coloured_noise(rows, samples, device)
    noise = noise * torch.where(steady, torch.ones_like(waving), waving**2)
    makers = (_music, _hum, _beeps, _clicks, _coughs)
    kinds = [noise, *(make(rows, samples, device) for make in makers)]
    made = torch.zeros(rows, samples, device=device)
    for kind in kinds:
        heard = draw(0, 1, rows, 1, device=device) < 0.3
        made = made + kind * heard * 10 ** (-draw(0, 30, rows, 1, device=device) / 20)
    return made * 10 ** draw(-4, -0.7, rows, 1, device=device)
