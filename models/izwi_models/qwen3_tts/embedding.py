"""The talker's inputs for positions of many sequences, concatenated and embedded together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from izwi.ops import Array, Ops, Weights
from izwi_models.qwen3_tts import talker
from izwi_models.qwen3_tts.prompt import FIRST_FRAME, SPEAKER, SpeechPrompt

Int64 = npt.NDArray[np.int64]

# Tables with embeddings of the codec track, in the order in which they are joined.
_NONE, _CODEC, _EMITTED, _CLIP, _VECTOR = range(5)


@dataclass(slots=True, eq=False)
class Positions:
    """Positions in order, embedded together with a few operations.

    `sources` and `offsets` have, for each position, the table of its codec embedding and the row in
    that table.
    """

    text: list[Int64] = field(default_factory=list)
    sources: list[Int64] = field(default_factory=list)
    offsets: list[Int64] = field(default_factory=list)
    codec_ids: list[Int64] = field(default_factory=list)
    emitted: list[tuple[int, ...]] = field(default_factory=list)
    clips: list[Array] = field(default_factory=list)
    vectors: list[Array] = field(default_factory=list)

    def add_prompt(
        self, prompt: SpeechPrompt, start: int, stop: int, speaker: Array, clip: Array
    ) -> None:
        """Add positions [start, stop) of a prompt.

        Args:
            prompt: The prompt.
            start: First position.
            stop: One past the last.
            speaker: (hidden,) vector of the cloned speaker; ignored if there is none.
            clip: (frames, codebooks) codes of the reference clip; likewise.
        """
        codec = prompt.codec[start:stop]
        source = np.full(len(codec), _NONE, np.int64)
        offset = np.zeros(len(codec), np.int64)
        is_id, is_frame, is_speaker = codec >= 0, codec <= FIRST_FRAME, codec == SPEAKER
        if is_id.any():
            source[is_id] = _CODEC
            offset[is_id] = np.arange(is_id.sum()) + sum(map(len, self.codec_ids))
            self.codec_ids.append(codec[is_id])
        if is_frame.any():
            frames = FIRST_FRAME - codec[is_frame]  # consecutive, since a clip is not reordered
            source[is_frame] = _CLIP
            offset[is_frame] = np.arange(len(frames)) + sum(c.shape[0] for c in self.clips)
            self.clips.append(clip[int(frames[0]) : int(frames[-1]) + 1])
        if is_speaker.any():
            source[is_speaker] = _VECTOR
            offset[is_speaker] = len(self.vectors)
            self.vectors.append(speaker)
        self.text.append(prompt.text[start:stop])
        self.sources.append(source)
        self.offsets.append(offset)

    def add_frames(self, frames: list[tuple[int, ...]], text: Int64) -> None:
        """Add emitted frames of `codebooks` ids each, with (frames,) text ids."""
        self.sources.append(np.full(len(frames), _EMITTED, np.int64))
        self.offsets.append(np.arange(len(frames)) + len(self.emitted))
        self.emitted.extend(frames)
        self.text.append(text)

    def embed(self, ops: Ops, weights: Weights, pad: tuple[int, Array]) -> Array:
        """Embed all added positions.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            pad: Text id of tts_pad and its embedding (1, hidden). Most frames have no other text,
                and then no text is embedded.

        Returns:
            (positions, hidden) in the order in which they were added.
        """
        ids = np.concatenate(self.text)
        if (ids == pad[0]).all():
            text = pad[1]
        else:
            text = talker.embed_text(ops, weights, ops.array(ids))
        sources = np.concatenate(self.sources)
        if (sources == _EMITTED).all():  # a step that only decodes: the frames are in order
            return text + self._embed_frames(ops, weights)
        tables = self._tables(ops, weights)
        firsts = np.cumsum([0, *(0 if table is None else table.shape[0] for table in tables)])
        joined = ops.concat([table for table in tables if table is not None], 0)
        index = firsts[sources] + np.concatenate(self.offsets)
        return text + ops.take(joined, ops.array(index))

    def _tables(self, ops: Ops, weights: Weights) -> list[Array | None]:
        """Return the tables, (rows, hidden) each; None for those that no position needs."""
        width = weights["talker.model.codec_embedding.weight"].shape[1]
        tables: list[Array | None] = [ops.zeros((1, width)), None, None, None, None]
        if self.codec_ids:
            ids = ops.array(np.concatenate(self.codec_ids))
            tables[_CODEC] = talker.embed_codec(ops, weights, ids)
        if self.emitted:
            tables[_EMITTED] = self._embed_frames(ops, weights)
        if self.clips:
            codes = self.clips[0] if len(self.clips) == 1 else ops.concat(self.clips, 0)
            tables[_CLIP] = talker.embed_frame(ops, weights, codes)
        if self.vectors:
            tables[_VECTOR] = ops.stack(self.vectors, 0)
        return tables

    def _embed_frames(self, ops: Ops, weights: Weights) -> Array:
        return talker.embed_frame(ops, weights, ops.array(np.array(self.emitted, np.int64)))
