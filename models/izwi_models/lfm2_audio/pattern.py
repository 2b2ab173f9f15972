"""Which track follows an entry of the log, as a pure function: text and frames alternate.

Source: liquid-audio 1.3.0, LFM2AudioModel.generate_interleaved and generate_sequential.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from izwi_models.lfm2_audio.config import AUDIO_START_ID, END_ID, END_OF_AUDIO, TEXT_END_ID

Ids = tuple[int, ...]


class TrackIndex(IntEnum):
    """The output tracks of the model."""

    TEXT = 0
    FRAMES = 1


class Mode(Enum):
    """How text and frames take turns.

    INTERLEAVED: fixed blocks of text and of frames, until a token ends the text; then frames until
        one ends the audio. SEQUENTIAL: text until a token starts audio; audio until it ends; text
        again.
    """

    INTERLEAVED = "interleaved"
    SEQUENTIAL = "sequential"


class Blocks(NamedTuple):
    """Entries of each block in interleaved generation."""

    text: int
    frames: int


class Turn(NamedTuple):
    """Whose turn it is after some entries of an answer.

    Attributes:
        track: Track of the next entry; None once the answer has ended.
        left: Entries left of its block. It continues counting after the end of the audio, even
            below zero, as in the published code.
        text_done: Whether <|text_end|> was emitted.
    """

    track: TrackIndex | None
    left: int
    text_done: bool


def first_turn(blocks: Blocks) -> Turn:
    """Return the start of an answer: text."""
    return Turn(TrackIndex.TEXT, blocks.text, False)


def next_turn(mode: Mode, blocks: Blocks, turn: Turn, ids: Ids | None) -> Turn:
    """Return whose turn it is after one more entry.

    Args:
        mode: How the tracks take turns.
        blocks: Sizes of the blocks.
        turn: State before the entry.
        ids: The entry on the track of `turn`; None if it is not known yet; it is then assumed
            neither to end nor to begin audio.
    """
    if turn.track is None:
        return turn
    first = None if ids is None else ids[0]
    if turn.track is TrackIndex.TEXT:
        if first == END_ID:
            return turn._replace(track=None)
        if mode is Mode.INTERLEAVED:
            return _after_text(blocks, turn, first)
        return turn._replace(track=TrackIndex.FRAMES) if first == AUDIO_START_ID else turn
    if mode is Mode.INTERLEAVED:
        return _after_frame(blocks, turn, first)
    return turn._replace(track=TrackIndex.TEXT) if first == END_OF_AUDIO else turn


def _after_text(blocks: Blocks, turn: Turn, token: int | None) -> Turn:
    left, done = turn.left - 1, turn.text_done or token == TEXT_END_ID
    if left == 0 or done:
        return Turn(TrackIndex.FRAMES, blocks.frames, done)
    return Turn(TrackIndex.TEXT, left, done)


def _after_frame(blocks: Blocks, turn: Turn, code: int | None) -> Turn:
    left, done = turn.left - 1, turn.text_done
    if left == 0 and not done:
        return Turn(TrackIndex.TEXT, blocks.text, done)
    track = TrackIndex.TEXT if code == END_OF_AUDIO else TrackIndex.FRAMES
    return Turn(track, left, done)
