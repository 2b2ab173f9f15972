"""Silero's detector of speech in numpy: a small recurrent network that was trained on people.

Its weights, 1.2 MB, are the 16 kHz ones of PyPI's package silero-vad (MIT), which is not imported:
it would load torch into API servers. The network reads 32 ms at a time, and the 4 ms before them:
a spectrum of four windows, four convolutions over them, an LSTM, and a logistic unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from izwi.arrays import Float32
from izwi_api.settings import SILERO_PACKAGE

WINDOW = 512
_CONTEXT = 64
_FFT_SIZE, _HOP = 256, 128
_BINS = _FFT_SIZE // 2 + 1
_UNITS = 128
# Name and stride of each convolution, all of three windows.
_CONVOLUTIONS = (("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1))
_FILE = "data/silero_vad_16k.safetensors"


@dataclass(frozen=True, slots=True)
class _Weights:
    """The network, with its matrices as the products need them.

    Attributes:
        spectrum: (_FFT_SIZE, 2 * _BINS), real parts first.
        convolutions: Per convolution its stride, (3 * inputs, outputs), and (outputs,).
        cell: (2 * _UNITS, 4 * _UNITS), of input and state, and (4 * _UNITS,): the gates input,
            forget, candidate, output.
        last: (_UNITS,) and (1,): the logistic unit.
    """

    spectrum: Float32
    convolutions: tuple[tuple[int, Float32, Float32], ...]
    cell: tuple[Float32, Float32]
    last: tuple[Float32, Float32]


@cache
def _load() -> _Weights:
    """Read the weights, once for all sessions."""
    spec = find_spec(SILERO_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(SILERO_PACKAGE)
    named = load_file(Path(spec.origin).parent / _FILE)

    def convolution(name: str) -> Float32:
        kernel = named[f"{name}.weight"]  # (outputs, inputs, 3)
        return np.ascontiguousarray(kernel.transpose(2, 1, 0).reshape(-1, len(kernel)))

    cell = np.concatenate([named["lstm_cell.weight_ih"], named["lstm_cell.weight_hh"]], axis=1)
    return _Weights(
        np.ascontiguousarray(named["stft_conv.weight"][:, 0].T),
        tuple((s, convolution(name), named[f"{name}.bias"]) for name, s in _CONVOLUTIONS),
        (np.ascontiguousarray(cell.T), named["lstm_cell.bias_ih"] + named["lstm_cell.bias_hh"]),
        (named["final_conv.weight"].ravel(), named["final_conv.bias"]),
    )


class Silero:
    """The detector of one stream. A frame gets the probability of the newest whole window."""

    def __init__(self) -> None:
        self._weights = _load()
        self._pending = np.zeros(_CONTEXT, np.float32)  # the context, then what is not judged yet
        self._hidden = np.zeros(_UNITS, np.float32)
        self._cell = np.zeros(_UNITS, np.float32)
        self._probability = 0.0

    def judge(self, frame: Float32) -> float:
        """Process the next samples at 16 kHz and return the probability of speech at their end."""
        self._pending = np.concatenate([self._pending, frame])
        while len(self._pending) >= _CONTEXT + WINDOW:
            self._probability = self._step(self._pending[: _CONTEXT + WINDOW])
            self._pending = self._pending[WINDOW:]
        return self._probability

    def _step(self, window: Float32) -> float:
        weights = self._weights
        padded = np.pad(window, (0, _FFT_SIZE // 4), mode="reflect")
        spans = np.lib.stride_tricks.sliding_window_view(padded, _FFT_SIZE)[::_HOP]
        parts = spans @ weights.spectrum  # (4, 2 * bins)
        state = np.hypot(parts[:, :_BINS], parts[:, _BINS:])
        for stride, kernel, bias in weights.convolutions:
            rows = np.pad(state, ((1, 1), (0, 0)))
            places = range(0, len(rows) - 2, stride)
            state = np.stack([rows[at : at + 3].ravel() for at in places]) @ kernel + bias
            state = np.maximum(state, 0.0)  # (windows, outputs)
        matrix, bias = weights.cell
        gates = np.concatenate([state[0], self._hidden]) @ matrix + bias
        admit, forget, candidate, output = np.split(gates, 4)
        self._cell = _logistic(forget) * self._cell + _logistic(admit) * np.tanh(candidate)
        self._hidden = _logistic(output) * np.tanh(self._cell)
        vector, last = weights.last
        return float(_logistic(np.maximum(self._hidden, 0.0) @ vector + last)[0])


def _logistic(x: Float32) -> Float32:
    """Return 1 / (1 + exp(-x)), without overflow."""
    value: Float32 = 0.5 * (1.0 + np.tanh(0.5 * x))
    return value
