"""Two tracks and short convolutions: log and audio are the same in every case."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.backends.torch.ops import TorchOps
from izwi.model.tracks import END
from izwi.request.request import Reason, Request
from tests.backends.kinds import mlx_at_night, needs_mlx
from tests.engine.ahead import ahead_of, one_step_ahead
from tests.engine.talk_world import TALK, TalkWorld, alone, talk_of
from tests.engine.toy import toy_request
from tests.engine.toy_talk import (
    AUDIO_END,
    FRAMES,
    NUM_FRAMES,
    NUM_TEXT,
    TEXT,
    Logged,
    SumCodec,
    talk_request,
)
from tests.examples import examples

SEED = 4  # whose answer has both tracks for long


def same(found, expected) -> None:
    assert found.error is None, found.error
    assert found.logged == expected.logged
    assert found.pcm == expected.pcm
    assert found.reason is expected.reason


def test_tracks_alternate_and_only_frames_become_audio() -> None:
    request = replace(talk_request("a", 9, SEED, 90), stop_ids=())
    heard = alone(request)
    assert len(heard.logged) == 90 or heard.reason is Reason.STOP
    progress = TALK.initial_progress(request)
    for track, ids in heard.logged:
        assert track == progress.track
        assert len(ids) == (1 if track == TEXT else 3)
        progress = TALK.following(request, progress, ids) or progress
    frames = [ids for track, ids in heard.logged if track == FRAMES and ids[0] != AUDIO_END]
    assert len(frames) > NUM_FRAMES
    assert len(heard.pcm) == len(frames) * SumCodec.frame_samples


def test_a_chunk_tells_the_tracks_of_its_entries() -> None:
    heard = alone(replace(talk_request("a", 9, SEED, 40), stop_ids=()))
    texts = [i for chunk in heard.chunks for i in chunk.of_track(TEXT).ravel().tolist()]
    assert texts == [ids[0] for track, ids in heard.logged if track == TEXT]
    frames = [ids for chunk in heard.chunks for ids in chunk.of_track(FRAMES).tolist()]
    assert frames == [list(ids) for track, ids in heard.logged if track == FRAMES]


def test_text_is_sent_at_once_and_the_first_audio_before_the_second_text() -> None:
    heard = alone(replace(talk_request("a", 9, SEED, 60), stop_ids=()))
    first = heard.kinds.index("audio")
    before = [t for chunk in heard.chunks[: first + 1] for t in chunk.tracks.tolist()]
    assert before == [TEXT] * before.count(TEXT) + [FRAMES], "one block of text, one frame"
    assert heard.kinds[:first] == ["text"] * before.count(TEXT), "one token a chunk"


@mlx_at_night
@pytest.mark.parametrize("ahead", [False, True])
def test_rows_of_both_tracks_run_in_one_step(ahead: bool, backend: str) -> None:
    requests = [talk_request(str(n), 3 + 4 * n, n, 32) for n in range(6)]
    neighbours = [toy_request(f"s{n}", 5 + n, n, 12) for n in range(2)]
    neighbours += [toy_request(f"t{n}", 5 + n, n, 12, model="text") for n in range(2)]
    expected = {r.request_id: alone(r, backend) for r in [*requests, *neighbours]}
    with ahead_of(backend) if ahead else nullcontext(backend) as kind:
        talk_of(kind).tracks_drawn.clear()
        world = TalkWorld(max_running=5, backend=kind)
        for request in [*requests, *neighbours]:
            world.submit(request)
        world.run()
    world.check_nothing_is_lost()
    assert {TEXT, FRAMES} in talk_of(kind).tracks_drawn
    for name, found in world.heard.items():
        same(found, expected[name])


def surprises_of(request: Request, logged: list[Logged]) -> list[int]:
    """Places of the entries that another track follows than was likely."""
    surprises, progress = [], TALK.initial_progress(request)
    for place, (_, ids) in enumerate(logged):
        likely, after = (TALK.following(request, progress, drawn) for drawn in (None, ids))
        if (likely and likely.track) != (after and after.track):
            surprises.append(place)
        progress = after or progress
    return surprises


def test_a_track_that_was_not_predicted_costs_one_row_more() -> None:
    """Where the ids change the track early, what was launched on the other one is drawn again."""
    places: set[int] = set()
    for seed in (3, 4, 9, *range(40)):  # the first three hold all places
        if len(places) == 4:
            break
        length = 5 + seed % 7
        request = replace(talk_request("a", length, seed, 60), stop_ids=())
        logged = alone(request).logged
        surprises = surprises_of(request, logged)
        if not surprises or surprises[0] >= len(logged) - 2:
            continue
        places.update((length + place) % 4 for place in surprises)
        with one_step_ahead():
            world = TalkWorld()
            before = TALK.num_positions_run
            world.submit(request)
            world.run()
        same(world.heard["a"], alone(request))
        run = TALK.num_positions_run - before
        least = length + len(logged) - 1
        assert least < run <= least + len(surprises)
    assert places == {0, 1, 2, 3}, "the row that runs again stands anywhere in its page"


def test_a_log_that_lacks_only_its_last_audio_ends_by_itself() -> None:
    """The engine died after the last entry was delivered, and before its audio was made."""
    ended = (talk_request("a", 6, seed, 80) for seed in (16, *range(60)))
    request = next(r for r in ended if alone(r).logged[-1] == (FRAMES, (AUDIO_END,) * 3))
    expected = alone(request)
    delivered = SumCodec.frame_samples - SumCodec.lookahead_samples
    log = replace(expected.log, chunk_samples=(delivered,))
    world = TalkWorld()
    world.submit(request, log)
    world.run()
    heard = world.heard["a"]
    assert heard.logged == [], "drawn again, the same, it ends the sequence and is not told twice"
    assert heard.pcm == expected.pcm[delivered:]
    assert heard.reason is expected.reason is Reason.STOP


def test_the_next_turn_computes_what_is_new() -> None:
    """An answer and its prompt are found again, up to the last page border."""
    world = TalkWorld()
    first = talk_request("a", 9, SEED, 40)
    world.submit(first)
    world.run()
    history = (*first.prompt.entries, *world.heard["a"].logged)  # type: ignore[attr-defined]
    second = talk_request("b", 5, 8, 30, before=history)
    expected = alone(second)
    before = TALK.num_positions_run
    world.submit(second)
    world.run()
    same(world.heard["b"], expected)
    run = TALK.num_positions_run - before
    # the last entry of an answer is never run, so the page that it would fill is not known
    assert run <= 5 + (len(history) - 1) % world.config.page_size + 1 + len(expected.logged)
    world.check_nothing_is_lost()


ACTIONS = ("step", "pause", "resume", "crash", "neighbour", "again")


@examples(25)
@given(data=st.data())
def test_whatever_happens_the_log_and_the_audio_are_the_same(data: st.DataObject) -> None:
    live_through(data, "torch")


@needs_mlx
@examples(8)
@given(data=st.data())
def test_on_mlx_too_the_log_and_the_audio_are_the_same(data: st.DataObject) -> None:
    live_through(data, "mlx")


def live_through(data: st.DataObject, backend: str) -> None:
    """Neighbours, pauses, memory for one request and a half, crashes, prefix hits, steps ahead."""
    count = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(1, 17), min_size=count, max_size=count))
    sizes = data.draw(st.lists(st.integers(1, 45), min_size=count, max_size=count))
    requests = [
        talk_request(f"r{n}", lengths[n], data.draw(st.integers(0, 5)), sizes[n])
        for n in range(count)
    ]
    expected = {request.request_id: alone(request, backend) for request in requests}
    config = {
        "pages": data.draw(st.integers(20, 40)),
        "max_running": data.draw(st.integers(1, 4)),
        "max_step_tokens": data.draw(st.integers(4, 64)),
        "host_bytes": data.draw(st.sampled_from([0, 1 << 14, 1 << 20])),
        "disk_bytes": data.draw(st.sampled_from([0, 1 << 16])),
        "policy": data.draw(st.sampled_from(["deadline", "priority", "fcfs"])),
    }
    with ahead_of(backend) if data.draw(st.booleans()) else nullcontext(backend) as kind:
        world = TalkWorld(**config, backend=kind)
        for request in requests:
            world.submit(request)
        for n in range(data.draw(st.integers(0, 25))):
            action = data.draw(st.sampled_from(ACTIONS))
            name = data.draw(st.sampled_from([r.request_id for r in requests]))
            if action == "step":
                for _ in range(data.draw(st.integers(1, 12))):
                    world.step()
            elif action == "pause":
                world.engine.pause(name)
            elif action == "resume":
                world.engine.resume(name)
            elif action == "neighbour":
                kind = data.draw(st.sampled_from(["toy", "text"]))
                world.submit(toy_request(f"n{n}", 5, n, 8, model=kind))
            elif action == "again":  # the same prompt and noise, from what is known of it
                twin = replace(requests[0], request_id=f"again{n}")
                expected[twin.request_id] = expected[requests[0].request_id]
                world.submit(twin)
            else:
                world = crashed(world, [*requests])
        for request in requests:
            world.engine.resume(request.request_id)
        world.run()
    world.check_nothing_is_lost()
    for request in requests:
        same(world.heard[request.request_id], expected[request.request_id])
    for name, found in world.heard.items():
        if name.startswith("again"):
            same(found, expected[name])


@pytest.mark.parametrize("num_steps", range(6, 13))
def test_audio_that_lags_is_delivered_once_when_its_last_entry_is_drawn_again(
    num_steps: int,
) -> None:
    """The last entry is a frame: a part of its audio leaves two steps before the rest."""
    request = talk_request("a", 7, 0, 7)
    expected = alone(request)
    assert expected.logged[-1][0] == FRAMES
    with one_step_ahead():
        world = TalkWorld()
        world.submit(request)
        for _ in range(num_steps):
            world.step()
        world = crashed(world, [request])
        world.run()
    world.check_nothing_is_lost()
    same(world.heard["a"], expected)


def crashed(world: TalkWorld, requests: list) -> TalkWorld:
    """Another engine goes on with what callers have; what is not theirs is gone."""
    fresh = TalkWorld(30, world.backend, max_running=world.config.max_running)
    for request in requests:
        heard = world.heard[request.request_id]
        if heard.reason is None:
            fresh.submit(request, heard.log)
        fresh.heard[request.request_id] = heard
    return fresh


@pytest.mark.parametrize("seed", range(4))
def test_audio_that_lags_equals_the_one_shot_decode(seed: int) -> None:
    """Its first samples are dropped, and its last come although no frame follows."""
    heard = alone(replace(talk_request("a", 9, seed, 60), stop_ids=()))
    frames = [ids for track, ids in heard.logged if track == FRAMES and ids[0] != AUDIO_END]
    codes = torch.tensor([[*frames, (END,) * 3]])
    zeros = {name: torch.zeros(1, *spec.shape) for name, spec in SumCodec.state.items()}
    samples = SumCodec(TorchOps()).decode(codes, zeros)[0][0, SumCodec.lookahead_samples :].tolist()
    assert heard.pcm == pytest.approx(samples[: len(frames) * SumCodec.frame_samples])
    lengths = [len(chunk.pcm) for chunk in heard.chunks if chunk.pcm is not None]
    assert lengths[0] == SumCodec.frame_samples - SumCodec.lookahead_samples


def test_an_answer_of_text_alone_has_no_audio() -> None:
    request = replace(talk_request("a", 9, SEED, NUM_TEXT), stop_ids=())
    heard = alone(request)
    assert [track for track, _ in heard.logged] == [TEXT] * NUM_TEXT
    assert heard.pcm == []
    assert heard.reason is Reason.LENGTH
