"""Detect the echo of the server's audio in the client's microphone signal.

An echo is a delayed, quieter copy of the played audio. So the last 0.2 s of the microphone signal
are correlated with the audio sent in the last 1.5 s. If one delay explains most of the microphone's
energy, the user is not speaking. A user who speaks over the answer is nearly always louder than its
echo, and then no delay explains the energy.
"""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.protocol.formats import INPUT_RATE, RecentAudio

# Compared at 8 kHz, by averaging pairs of samples: the echo of speech is below 4 kHz.
_STRIDE = 2
_RATE = INPUT_RATE // _STRIDE
_WINDOW = _RATE * 200 // 1000
# Longest delay: the room, the client's playback buffer and the server's lead.
_REACH = _RATE * 1500 // 1000
# Share of the microphone's energy that one delay explains. Measured on frames with speech of the
# embedded voices: echoes at -10 and -20 dB with noise 20 dB below them have 0.64 or more in
# 99 %; another voice alone has at most 0.38 in 99 %; 6 dB above an echo at most 0.47 in 95 %.
_LEAST_EXPLAINED = 0.6
# The same after a frame that was an echo: reflections in the room blur some frames.
_STILL_EXPLAINED = 0.5


class EchoCheck:
    """Compares the microphone signal with the audio sent to the loudspeaker, both at 16 kHz."""

    def __init__(self) -> None:
        self._sent = RecentAudio(_REACH + _WINDOW)
        self._heard = RecentAudio(_WINDOW)
        self._was_echo = False
        self.begin_answer()

    def begin_answer(self) -> None:
        """Mark a gap: the audio sent next does not directly follow the audio sent before."""
        self._sent.write(np.zeros(_WINDOW, np.float32))

    def write_sent(self, samples: Float32) -> None:
        """Add audio that is being sent to the client."""
        self._sent.write(_thin(samples))

    def write_heard(self, samples: Float32) -> None:
        """Add a frame of microphone audio; the number of samples must be even."""
        self._heard.write(_thin(samples - samples.mean()))

    def is_echo(self) -> bool:
        """Return whether the last 0.2 s of the microphone are an echo."""
        least = _STILL_EXPLAINED if self._was_echo else _LEAST_EXPLAINED
        self._was_echo = self.explained() >= least
        return self._was_echo

    def explained(self) -> float:
        """Return the share of the microphone's energy that an echo explains, from 0 to 1."""
        heard = self._heard.read(self._heard.end - _WINDOW, self._heard.end)
        sent = self._sent.read(self._sent.end - _REACH - _WINDOW, self._sent.end)
        energy = float(np.sum(np.square(heard, dtype=np.float64)))
        if len(heard) < _WINDOW or len(sent) < _WINDOW or energy == 0.0:
            return 0.0
        size = 1 << (len(sent) + _WINDOW - 1).bit_length()
        product = np.fft.rfft(sent, size) * np.conj(np.fft.rfft(heard, size))
        products = np.fft.irfft(product, size)[: len(sent) - _WINDOW + 1]
        sums = np.cumsum(np.pad(np.square(sent, dtype=np.float64), (1, 0)))
        energies = sums[_WINDOW:] - sums[:-_WINDOW]
        audible = energies > 1e-4 * max(float(energies.max()), 1e-12)
        shares = np.square(products[audible]) / (energies[audible] * energy)
        return float(shares.max(initial=0.0))


def _thin(samples: Float32) -> Float32:
    whole = samples[: len(samples) - len(samples) % _STRIDE]
    thinned: Float32 = whole.reshape(-1, _STRIDE).mean(axis=1, dtype=np.float32)
    return thinned
