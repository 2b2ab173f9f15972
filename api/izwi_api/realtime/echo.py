"""Recognize the server's own sound when it comes back through the client's microphone.

An echo is the sound just played, later and quieter. So the last fifth of a second of the microphone
is compared with the sound sent in the last second and a half. If one place in it explains most of
the microphone's energy, the user is not speaking. A user who speaks over the answer is nearly
always louder than its echo, and then no place explains the energy.
"""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.formats import HEARD_RATE, RecentSound

# Compared at 8 kHz, by means of two samples: the echo of speech is below 4 kHz.
_STRIDE = 2
_RATE = HEARD_RATE // _STRIDE
_WINDOW = _RATE * 200 // 1000
# The longest delay of the room and the client, its playback buffer and the lead of the server.
_REACH = _RATE * 1500 // 1000
# Share of the microphone's energy that one place of the reference explains. Over the embedded
# voices, frames with speech: echoes at -10 and -20 dB with noise 20 dB below them 0.64 and more in
# 99 of 100; another voice alone at most 0.38 in 99 of 100; 6 dB above an echo 0.47 in 95 of 100.
_LEAST_EXPLAINED = 0.6
# The same behind a frame that was an echo: a room's reflections blur some frames.
_STILL_EXPLAINED = 0.5


class EchoCheck:
    """Compares a microphone with what was sent to its loudspeaker. All sound is at 16 kHz."""

    def __init__(self) -> None:
        self._sent = RecentSound(_REACH + _WINDOW)
        self._heard = RecentSound(_WINDOW)
        self._was_echo = False
        self.begin_answer()

    def begin_answer(self) -> None:
        """Note that what is sent next is not played right behind what was sent before."""
        self._sent.write(np.zeros(_WINDOW, np.float32))

    def write_sent(self, samples: Float32) -> None:
        """Take sound that is sent to the client now."""
        self._sent.write(_thin(samples))

    def write_heard(self, samples: Float32) -> None:
        """Take sound of the microphone, an even number of samples."""
        self._heard.write(_thin(samples))

    def is_echo(self) -> bool:
        """Whether the microphone's last 0.2 s are an echo."""
        least = _STILL_EXPLAINED if self._was_echo else _LEAST_EXPLAINED
        self._was_echo = self.explained() >= least
        return self._was_echo

    def explained(self) -> float:
        """Share of the microphone's energy that an echo explains, from 0 to 1."""
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
