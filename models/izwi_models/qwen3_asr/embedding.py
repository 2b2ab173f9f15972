"""Sound as the decoder reads it: windows encoded, and put among the embeddings of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

import numpy as np

from izwi.model import Row
from izwi.ops import Array, Ops, Weights
from izwi.request import EncodeInput, Int64
from izwi_models.qwen3_asr.config import EMBEDDING, AudioConfig
from izwi_models.qwen3_asr.encoder import encode_windows
from izwi_models.qwen3_asr.prompt import WINDOW, AsrPrompt


def encode_all(
    ops: Ops, weights: Weights, config: AudioConfig, positions: Array, inputs: Seq[EncodeInput]
) -> list[Array]:
    """Encode windows, equal ones as one batch.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: Sizes of the encoder.
        positions: `chunk_positions(config)` on the device.
        inputs: Windows as `cut_windows` makes them.

    Returns:
        (tokens, hidden) each, in order.
    """
    groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for n, window in enumerate(inputs):
        groups[window.kind, window.values.shape[1]].append(n)
    encoded: dict[int, Array] = {}
    for (kind, frames), members in groups.items():
        # the first convolution makes its input 120 times larger, so bound it
        size = max(1, config.conv_chunksize // -(-frames // config.chunk_frames))
        for start in range(0, len(members), size):
            batch = members[start : start + size]
            mel = ops.array(np.stack([inputs[n].values for n in batch]))
            out = encode_windows(
                ops, weights, config, mel, pad_chunks=kind == WINDOW, positions=positions
            )
            encoded.update((n, out[i]) for i, n in enumerate(batch))
    return [encoded[n] for n in range(len(inputs))]


def embed(ops: Ops, weights: Weights, rows: Seq[Row]) -> Array:
    """Embeddings of the rows' positions end to end: tokens, with sound put in its place.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        rows: Of sequences whose prompts are `AsrPrompt`s, and whose sound is encoded.

    Returns:
        (positions, hidden).
    """
    embedded = ops.take(weights[EMBEDDING], ops.array(token_ids(rows)))
    pieces, done, offset = [], 0, 0
    for row in rows:
        prompt = prompt_of(row)
        low = max(row.start, prompt.audio_start)
        high = min(row.stop, prompt.audio_start + prompt.num_audio)
        if low < high:
            pieces.append(embedded[done : offset + low - row.start])
            pieces += _slices(row.sequence.encoded, prompt.audio_start, low, high)
            done = offset + high - row.start
        offset += row.stop - row.start
    if not pieces:
        return embedded
    return ops.concat([*pieces, embedded[done:]], 0)


def has_sound(row: Row) -> bool:
    """Whether some of its positions are sound."""
    prompt = prompt_of(row)
    return row.start < prompt.audio_start + prompt.num_audio and row.stop > prompt.audio_start


def prompt_of(row: Row) -> AsrPrompt:
    """The prompt of a row's sequence."""
    prompt = row.sequence.request.prompt
    assert isinstance(prompt, AsrPrompt)
    return prompt


def token_ids(rows: Seq[Row]) -> Int64:
    """Token ids of the rows' positions end to end: prompts, then what was emitted after them."""
    ids: list[int] = []
    for row in rows:
        known = prompt_of(row).token_ids
        start, stop = row.start, row.stop
        if start < len(known):
            ids += known[start:stop].tolist()
            start = len(known)
        if start < stop:
            emitted = row.sequence.emitted[start - len(known) : stop - len(known)]
            ids += [entry[0] for entry in emitted]
    return np.array(ids, np.int64)


def _slices(encoded: Seq[Array], first: int, low: int, high: int) -> list[Array]:
    """What lies in [low, high) of the encoded windows, the first of which starts at `first`."""
    parts = []
    for window in encoded:
        stop = first + window.shape[0]
        if first < high and low < stop:
            parts.append(window[max(low - first, 0) : min(high, stop) - first])
        first = stop
    return parts
