"""Audio for the decoder: windows are encoded and inserted among the embeddings of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

import numpy as np

from izwi.arrays import Int64
from izwi.model.step_batch import Row
from izwi.ops import Array, Ops, Weights
from izwi.request.request import EncodeInput, Request
from izwi_models.qwen3.token_model import logged_tokens
from izwi_models.qwen3_asr.config import EMBEDDING, AudioConfig
from izwi_models.qwen3_asr.encoder import (
    PaddedClips,
    Windows,
    audio_columns,
    chunk_positions,
    encode_clips,
    encode_windows,
    peak_values,
)
from izwi_models.qwen3_asr.prompt import WINDOW, AsrPrompt

_MAX_WINDOWS, _MAX_CLIPS = 16, 16  # per batch


class WindowSizes:
    """Batches of windows. Implements `izwi.model.encoders.EncoderSizes`."""

    def __init__(self, config: AudioConfig):
        self._config = config

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of a quarter, a half and all of a window, (128, frames) each: 2, 4 and 8 s."""
        chunk = self._config.chunk_frames
        whole = self._config.n_window_infer // chunk
        chunks = sorted({-(-whole // part) for part in (1, 2, 4)})
        return tuple((self._config.num_mel_bins, n * chunk) for n in chunks)

    def max_pieces(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """Return the maximum number of windows in a batch; it is the same for all shapes."""
        return _MAX_WINDOWS

    def peak_values(self, shape: tuple[int, ...], pieces: int) -> int:
        """Return the most numbers that encoding a batch keeps at once."""
        return peak_values(self._config, shape[0], shape[1], pieces)


class ClipSizes:
    """Batches of audio below 1 s. Implements `izwi.model.encoders.EncoderSizes`."""

    def __init__(self, config: AudioConfig):
        self._config = config

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape of a whole chunk: (128, frames)."""
        return ((self._config.num_mel_bins, self._config.chunk_frames),)

    def max_pieces(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """Return the maximum number of clips in a batch."""
        return _MAX_CLIPS

    def peak_values(self, shape: tuple[int, ...], pieces: int) -> int:
        """Return the most numbers that encoding a batch keeps at once."""
        return peak_values(self._config, shape[0], shape[1], pieces)


def encoder_sizes(config: AudioConfig) -> tuple[WindowSizes, ClipSizes]:
    """Return the sizes of the encoders of a model."""
    return WindowSizes(config), ClipSizes(config)


class WindowEncoder(WindowSizes):
    """The audio encoder on one device. Implements `izwi.model.encoders.PaddedEncoder`."""

    axis = 1  # the mel frames of (128, frames)

    def __init__(self, ops: Ops, weights: Weights, config: AudioConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            config: Sizes of the encoder.
        """
        super().__init__(config)
        self._ops, self._weights = ops, weights
        self._positions = ops.array(chunk_positions(config))
        frames = range(config.n_window_infer + 1)
        self._num_tokens = ops.array(np.array([config.num_tokens(n) for n in frames]))

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Encode windows; windows of equal length form one batch.

        Args:
            inputs: Windows from `cut_windows`.

        Returns:
            (tokens, hidden) each, in order.
        """
        groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for n, window in enumerate(inputs):
            groups[window.kind, window.values.shape[1]].append(n)
        encoded: dict[int, Array] = {}
        for (kind, _), members in groups.items():
            mel = self._ops.array(np.stack([inputs[n].values for n in members]))
            out = encode_windows(
                self._ops,
                self._weights,
                self._config,
                mel,
                pad_chunks=kind == WINDOW,
                windows=Windows(self._positions),
            )
            encoded.update((n, out[i]) for i, n in enumerate(members))
        return [encoded[n] for n in range(len(inputs))]

    def unpadded(self, row: Array, length: int) -> Array:
        """Return the tokens of the first `length` mel frames: (tokens, hidden)."""
        return row[: self._config.num_tokens(length)]

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """Encode windows of one of the shapes: (batch, tokens, hidden)."""
        return encode_windows(
            self._ops,
            self._weights,
            self._config,
            values,
            windows=Windows(self._positions, self._num_tokens[lengths]),
        )


class ClipEncoder(ClipSizes):
    """The same encoder for audio below 1 s. Implements `izwi.model.encoders.PaddedEncoder`."""

    axis = 1  # the mel frames of (128, frames)

    def __init__(self, ops: Ops, weights: Weights, config: AudioConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            config: Sizes of the encoder.
        """
        super().__init__(config)
        self._ops, self._weights = ops, weights
        self._positions = ops.array(chunk_positions(config))
        frames = range(config.chunk_frames + 1)
        self._num_tokens = ops.array(np.array([config.num_tokens(n) for n in frames]))
        self._is_audio = [ops.array(columns) > 0 for columns in audio_columns(config)]

    def unpadded(self, row: Array, length: int) -> Array:
        """Return the tokens of the first `length` mel frames: (tokens, hidden)."""
        return row[: self._config.num_tokens(length)]

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """Encode clips of up to a chunk: (batch, tokens, hidden)."""
        is_audio = tuple(columns[lengths] for columns in self._is_audio)
        clips = PaddedClips(self._positions, self._num_tokens[lengths], is_audio)
        return encode_clips(self._ops, self._weights, self._config, values, clips)


def embed(ops: Ops, weights: Weights, rows: Seq[Row]) -> Array:
    """Return embeddings of the rows' positions, concatenated: tokens and encoded audio.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        rows: Rows of requests whose prompts are `AsrPrompt`s with encoded audio.

    Returns:
        (positions, hidden).
    """
    ids = token_ids(rows)
    places = np.arange(len(ids))  # row of each input: in the tokens, then in the windows
    windows: list[Array] = []
    offset, behind = 0, len(ids)
    for row in rows:
        prompt = prompt_of(row.request)
        low = max(row.start, prompt.audio_start)
        high = min(row.stop, prompt.audio_start + prompt.num_audio)
        if low < high:
            first, heard = _overlapping(row.encoded, prompt.audio_start, low, high)
            at = offset + low - row.start
            places[at : at + high - low] = np.arange(low - first, high - first) + behind
            behind += sum(window.shape[0] for window in heard)
            windows += heard
        offset += row.stop - row.start
    if not windows:
        return ops.take(weights[EMBEDDING], ops.array(ids))
    # one copy to the device and three operations, for any number of rows
    both = ops.array(np.stack([ids, places]))
    inputs = ops.concat([ops.take(weights[EMBEDDING], both[0]), *windows], 0)
    return ops.take(inputs, both[1])


def has_audio(row: Row) -> bool:
    """Return whether some of the row's positions are audio."""
    prompt = prompt_of(row.request)
    return row.start < prompt.audio_start + prompt.num_audio and row.stop > prompt.audio_start


def prompt_of(request: Request) -> AsrPrompt:
    """Return the prompt of a request of this family."""
    prompt = request.prompt
    assert isinstance(prompt, AsrPrompt)
    return prompt


def token_ids(rows: Seq[Row]) -> Int64:
    """Return token ids of the rows' positions, concatenated: prompts, then emitted tokens."""
    parts: list[Int64] = []
    for row in rows:
        known = prompt_of(row.request).token_ids
        if row.start < len(known):
            parts.append(known[row.start : row.stop])
        if row.stop > len(known):
            parts.append(np.array(logged_tokens(row), np.int64))
    return np.concatenate(parts)


def _overlapping(encoded: Seq[Array], first: int, low: int, high: int) -> tuple[int, list[Array]]:
    """Return the windows over [low, high) and where they begin; window 0 begins at `first`."""
    heard: list[Array] = []
    start, stop = first, first
    for window in encoded:
        begin, stop = stop, stop + window.shape[0]
        if stop > low and begin < high:
            start = start if heard else begin
            heard.append(window)
    return start, heard
