"""The order of text and frames against a straightforward simulation of the published loops."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from izwi_models.lfm2_audio.pattern import (
    Blocks,
    Mode,
    TrackIndex,
    Turn,
    first_turn,
    next_turn,
)

TEXT, FRAMES = TrackIndex.TEXT, TrackIndex.FRAMES
END, AUDIO_START, TEXT_END, END_OF_AUDIO = 7, 128, 130, 2048

TOKENS = st.sampled_from([END, AUDIO_START, TEXT_END, *[20] * 12])
CODES = st.sampled_from([END_OF_AUDIO, *[5] * 9])
BLOCKS = st.builds(Blocks, st.integers(1, 7), st.integers(1, 13))


def interleaved(blocks: Blocks, tokens: Iterator[int], codes: Iterator[int]) -> list[tuple]:
    """The loop as a program with variables: (track, first id) of each step, the end included."""
    steps, speaks, left, done = [], False, blocks.text, False
    for _ in range(80):
        left -= 1
        if not speaks:
            token = next(tokens)
            steps.append((TEXT, token))
            if token == END:
                break
            if token == TEXT_END:
                done = True
            if left == 0 or done:
                speaks, left = True, blocks.frames
        else:
            code = next(codes)
            steps.append((FRAMES, code))
            if left == 0 and not done:
                speaks, left = False, blocks.text
            if code == END_OF_AUDIO:
                speaks = False
    return steps


def sequential(_: Blocks, tokens: Iterator[int], codes: Iterator[int]) -> list[tuple]:
    steps, speaks = [], False
    for _step in range(80):
        if speaks:
            code = next(codes)
            steps.append((FRAMES, code))
            speaks = code != END_OF_AUDIO
        else:
            token = next(tokens)
            steps.append((TEXT, token))
            if token == END:
                break
            speaks = token == AUDIO_START
    return steps


LOOPS = {Mode.INTERLEAVED: interleaved, Mode.SEQUENTIAL: sequential}


def entry(track: TrackIndex, first: int) -> tuple[int, ...]:
    return (first,) if track is TEXT else (first,) * 8


@given(
    mode=st.sampled_from(Mode),
    blocks=BLOCKS,
    tokens=st.lists(TOKENS, min_size=80, max_size=80),
    codes=st.lists(CODES, min_size=80, max_size=80),
)
def test_turns_are_those_of_the_loops(mode, blocks, tokens, codes):
    steps = LOOPS[mode](blocks, iter(tokens), iter(codes))
    turn = first_turn(blocks)
    log = []
    for track, first in steps:
        assert turn.track is track
        log.append(entry(track, first))
        turn = next_turn(mode, blocks, turn, log[-1])
    assert (turn.track is None) is (steps[-1] == (TEXT, END))


@given(
    mode=st.sampled_from(Mode),
    blocks=BLOCKS,
    turn=st.builds(Turn, st.sampled_from([TEXT, FRAMES]), st.integers(-30, 13), st.booleans()),
    ids=st.sampled_from([20, 5]),
)
def test_an_unknown_entry_is_taken_for_an_ordinary_one(mode, blocks, turn, ids):
    known = entry(turn.track, ids)
    assert next_turn(mode, blocks, turn, None) == next_turn(mode, blocks, turn, known)


def test_ended_turn_stays_ended():
    blocks = Blocks(6, 12)
    for mode in Mode:
        ended = next_turn(mode, blocks, first_turn(blocks), (END,))
        assert ended.track is None
        assert next_turn(mode, blocks, ended, (20,)) == ended


def test_the_published_blocks_take_turns():
    blocks = Blocks(6, 12)
    turn, tracks = first_turn(blocks), ""
    for _ in range(40):
        tracks += "TA"[turn.track or 0]
        turn = next_turn(Mode.INTERLEAVED, blocks, turn, None)
    assert tracks == ("T" * 6 + "A" * 12) * 2 + "TTTT"
