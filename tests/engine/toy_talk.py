"""A model of two tracks: text and frames in turns, as in LFM2-Audio, with short convolutions.

Six tokens, then twelve frames, and so on; `TEXT_END` brings frames at once, until `AUDIO_END` in
their first codebook. Every output depends on its whole history, through convolutions, attention
with a window and attention without, so that a column of state lost anywhere changes what it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct

from izwi.backends.torch.ops import TorchOps
from izwi.model.layers import PagedAttention, ShortConv, StateSpec
from izwi.model.protocol import UNKNOWN, Pick
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import END, Track
from izwi.ops import Array, AttentionSpec, Ops
from izwi.request.digests import digest_ints
from izwi.request.request import EncodeInput, Request, SamplingParams, TrackParams
from izwi.request.track_log import Entry, TrackProgress
from tests.engine.toy import summed

TEXT, FRAMES = 0, 1
NUM_TEXT, NUM_FRAMES = 6, 12
CODEBOOKS = 3
VOCAB = 24
STOP, TEXT_END, AUDIO_END = 23, 22, 21
WIDTH = 16
HEADS = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, rope_theta=1e4)
Logged = tuple[int, Entry]


class TalkPrompt(Struct, frozen=True, tag=True):
    """Entries of any track: an earlier answer is given back as it was."""

    entries: tuple[Logged, ...]
    encode_inputs: tuple[EncodeInput, ...] = ()

    @property
    def num_positions(self) -> int:
        return len(self.entries)

    @property
    def content_keys(self) -> npt.NDArray[np.int64]:
        return np.array([digest_ints([track, *ids]) for track, ids in self.entries], np.int64)


class SumCodec:
    """Audio that depends on all frames so far; each sample depends on one three samples later."""

    sample_rate = 1000
    frame_samples = 4
    lookahead_samples = 3
    state: Mapping[str, StateSpec] = {"sum": StateSpec((1,)), "last": StateSpec((3,))}
    warms_up = False

    def __init__(self, ops: Ops):
        self.ops = ops

    def peak_values(self, frames: int) -> int:
        return 8 * self.frame_samples * frames

    def warm_codes(self, span: Span) -> None:
        return None

    def decode(self, codes: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        assert (codes[..., 0] != AUDIO_END).all(), "the end of audio is not decoded"
        is_audio = self.ops.cast(codes[..., 0] != END)
        is_audio = self.ops.stack([is_audio] * self.frame_samples, -1).reshape(len(codes), -1)
        total = state["sum"] + summed(self.ops, codes, self.frame_samples)
        waves = self.ops.concat([state["last"], self.ops.sin(total) * is_audio], 1)
        audio = waves[:, : -self.lookahead_samples] + 0.5 * waves[:, self.lookahead_samples :]
        return audio / 2, {"sum": total[:, -1:], "last": waves[:, -self.lookahead_samples :]}


class ToyTalk:
    """Implements Model, ChoosesTracks and CapturableTracks."""

    max_positions = 512
    num_inputs = 1 + CODEBOOKS
    entry_columns = (0, 1)
    layers = (
        ShortConv(WIDTH, 3),
        PagedAttention(2, 8, 1e4),
        ShortConv(WIDTH, 3),
        PagedAttention(2, 8, 1e4, window=7),
    )

    def __init__(self, ops: Ops | None = None) -> None:
        self.ops: Ops = ops or TorchOps()
        self.tracks = (
            Track("text", 1, VOCAB),
            Track("frames", CODEBOOKS, VOCAB, None, SumCodec(self.ops), frozenset([AUDIO_END])),
        )
        g = torch.Generator().manual_seed(1)

        def drawn(*shape: int) -> Array:
            return self.ops.array((torch.randn(shape, generator=g) * 0.4).numpy())

        self.words, self.codes = 2 * drawn(VOCAB, WIDTH), 2 * drawn(CODEBOOKS, VOCAB, WIDTH)
        self.text_head, self.heads = 2 * drawn(VOCAB, WIDTH), 2 * drawn(CODEBOOKS, VOCAB, WIDTH)
        self.mixed = [drawn(3 * WIDTH, WIDTH) for _ in range(2)]
        self.kernels = [2 * drawn(WIDTH, 3) for _ in range(2)]
        self.qkv = [drawn(32 + 2 * 16, WIDTH) for _ in range(2)]
        self.outs = [drawn(WIDTH, width) for width in (WIDTH, 32, WIDTH, 32)]
        self.ones = self.ops.array(np.ones(WIDTH))
        self.num_positions_run = 0
        self.tracks_drawn: list[set[int]] = []  # of each step

    # -- what follows ------------------------------------------------------------------------
    def initial_progress(self, request: Request) -> TrackProgress:
        return TrackProgress(TEXT, (NUM_TEXT, 0))

    def following(
        self, request: Request, progress: TrackProgress, drawn: Entry | None
    ) -> TrackProgress | None:
        left, text_done = progress.state
        left -= 1
        if progress.track == TEXT:
            if drawn == (TEXT_END,):
                text_done = 1
            if left == 0 or text_done:
                return TrackProgress(FRAMES, (NUM_FRAMES, text_done))
            return TrackProgress(TEXT, (left, text_done))
        if drawn is not None and drawn[0] == AUDIO_END:
            return None if text_done else TrackProgress(TEXT, (NUM_TEXT, 0))
        if left == 0 and not text_done:
            return TrackProgress(TEXT, (NUM_TEXT, 0))
        return TrackProgress(FRAMES, (left, text_done))

    # -- positions ---------------------------------------------------------------------------
    def _logged(self, row: Row) -> list[Logged]:
        entries, tracks = row.before()
        return [*row.request.prompt.entries, *zip(tracks, entries, strict=True)]

    def content_keys(self, span: Span) -> list[int]:
        prompt = span.request.prompt.entries[span.start : span.stop]
        # a token has one id, and a frame several
        logged = [(TEXT if len(ids) == 1 else FRAMES, ids) for ids in span.logged()]
        return [digest_ints([track, *ids]) for track, ids in (*prompt, *logged)]

    def embed(self, rows: Sequence[Row]) -> Array:
        self.num_positions_run += sum(row.stop - row.start for row in rows)
        self.tracks_drawn.append({row.track for row in rows if row.emits})
        return self.ops.stack(
            [
                self.words[ids[0]]
                if track == TEXT
                else sum(self.codes[book][code] for book, code in enumerate(ids))
                for row in rows
                for track, ids in self._logged(row)[row.start : row.stop]
            ],
            0,
        )

    def inputs(self, rows: Sequence[Row]) -> Any:
        """A token or a frame for each position, -1 elsewhere."""
        self.tracks_drawn.append({row.track for row in rows if row.emits})
        inputs = []
        for row in rows:
            known = [
                (*ids, *[UNKNOWN] * CODEBOOKS) if track == TEXT else (UNKNOWN, *ids)
                for track, ids in self._logged(row)
            ]
            known += [(UNKNOWN,) * self.num_inputs] * (row.step - row.num_known)
            inputs += known[row.start : row.stop]
        return np.array(inputs)

    def embed_inputs(self, inputs: Any) -> Any:
        ops, x = self.ops, 0.0
        for column, table in enumerate([self.words, *self.codes]):
            ids = inputs[:, column]
            looked_up = ops.take(table, ops.clip(ids, 0, None))
            x = x + ops.where((ids >= 0)[:, None], looked_up, 0.0)
        return x

    # -- a step ------------------------------------------------------------------------------
    def run(self, x: Any, context: Any) -> Any:
        for n in range(2):
            mixed = self.ops.linear(self._norm(x), self.mixed[n])
            y = self.ops.gated_short_conv(mixed, self.kernels[n], context=context, layer=n)
            x = self.ops.linear_add(y, self.outs[2 * n], x)
            y = self.ops.normed_attention(
                x, self.ones, 1e-6, self.qkv[n], spec=HEADS, context=context, layer=n
            )
            x = self.ops.linear_add(y, self.outs[2 * n + 1], x)
        return self._norm(x)

    def _norm(self, x: Any) -> Any:
        return self.ops.rms_norm(x, self.ones, 1e-6)

    def draw(self, hidden: Any, pick: Pick, track: int = 0) -> Any:
        if track == TEXT:
            return pick(hidden @ self.text_head.T, 0)[:, None]
        ids = []
        for book in range(CODEBOOKS):
            ids.append(pick(hidden @ self.heads[book].T, book))
            hidden = hidden + 0.1 * self.ops.take(self.codes[book], ids[-1])
        codes = self.ops.stack(ids, 1)
        return self.ops.where(codes[:, :1] != AUDIO_END, codes, AUDIO_END)


def talk_request(
    name: str, length: int, seed: int, entries: int, before: Sequence[Logged] = (), **more: Any
) -> Request:
    """A request whose prompt is `before` and so many tokens more."""
    ids = np.random.default_rng(seed).integers(0, 20, length).tolist()
    sampling = SamplingParams(0.9, 20, 0.95, 1.1) if seed % 3 else SamplingParams()
    return Request(
        request_id=name,
        model="talk",
        prompt=TalkPrompt((*before, *((TEXT, (word,)) for word in ids))),
        sampling=sampling,
        seed=seed,
        max_entries=entries,
        min_entries=2,
        stop_ids=(STOP,),
        other_tracks=(TrackParams(SamplingParams(1.0, 4), SamplingParams(1.0, 4)),),
        **more,
    )
