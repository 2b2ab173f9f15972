"""Prefixes that are known are not computed again, and equal audio is encoded once."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.request.request import EncodeInput
from tests.backends.kinds import each_and_ahead, mlx_at_night
from tests.engine.toy import ToyPrompt, toy_request
from tests.engine.world import SPEECH, TEXT, World, alone, toys

SHARED = tuple((7 * i) % 30 for i in range(500))


def request(name: str, tail: tuple[int, ...], model: str = "text", frames: int = 3):
    made = toy_request(name, 1, seed=9, frames=frames, model=model)
    return replace(made, prompt=ToyPrompt(SHARED + tail))


@mlx_at_night
@pytest.mark.parametrize("together", [True, False], ids=["at once", "one after the other"])
def test_64_requests_compute_their_500_common_positions_once(together: bool, backend: str) -> None:
    world = World(2000, backend, max_running=64, max_step_tokens=2048)
    _, text = toys(backend)
    before = text.num_tokens
    requests = [request(str(i), (i % 30, i // 30)) for i in range(64)]
    for made in requests:
        world.submit(made)
        if not together:
            world.run()
    world.run()
    computed = text.num_tokens - before
    decoded = sum(len(log.entries) for log in world.logs.values())
    own = 64 * (2 + world.config.page_size)  # their own two, and at most the split page
    assert computed <= 500 + own + decoded
    load = world.engine.load["text"]
    assert load["prefix_positions_hit"] >= 63 * 496
    assert load["prefix_positions_hit"] / load["prefix_positions_asked"] > 0.9
    for made in requests[::21]:
        assert world.logs[made.request_id].entries == alone(made, backend=backend).entries
    world.check_nothing_is_lost()


def test_a_prompt_in_flight_is_waited_for_by_those_that_begin_with_it() -> None:
    world = World(max_running=8, max_step_tokens=64)
    before = TEXT.num_tokens
    for number in range(3):
        world.submit(request(str(number), (number,)))
        world.step()
    assert world.engine.load["text"]["steps"] == 3
    assert world.engine.load["text"]["running"] == 1, "its first 500 positions take eight steps"
    world.run()
    decoded = sum(len(log.entries) for log in world.logs.values())
    assert TEXT.num_tokens - before <= 500 + 3 * (1 + world.config.page_size) + decoded


def test_others_overtake_a_request_that_waits_for_a_prompt_in_flight() -> None:
    world = World(max_running=8, max_step_tokens=64)
    for number in range(2):
        world.submit(request(str(number), (number,)))
        world.step()
    world.submit(toy_request("other", 3, seed=2, frames=2, model="text"))
    while not world.logs["0"].entries:
        world.step()
    assert world.logs["other"].entries, "the last part of the first prompt leaves it room"
    assert not world.logs["1"].entries


@each_and_ahead
def test_prefixes_part_inside_a_page_and_the_rest_of_it_is_copied(backend: str) -> None:
    world = World(backend=backend)
    _, text = toys(backend)
    first, second = request("a", (1, 2, 3, 4, 5)), request("b", (1, 2, 3, 9, 9))
    world.submit(first)
    world.run()
    before = text.num_tokens
    world.submit(second)
    world.run()
    assert text.num_tokens - before == 2 + len(world.logs["b"].entries) - 1
    assert world.logs["b"].entries == alone(second, backend=backend).entries
    # the copy was written to, the original was not
    again = replace(first, request_id="c")
    world.submit(again)
    world.run()
    expected = alone(first, backend=backend).entries
    assert world.logs["c"].entries == world.logs["a"].entries == expected


def test_a_conversation_continues_from_its_own_answer() -> None:
    world = World()
    world.submit(request("a", (), frames=12))
    world.run()
    answer = tuple(entry[0] for entry in world.logs["a"].entries)
    follow_up = request("b", (*answer, 4, 4))
    before = TEXT.num_tokens
    world.submit(follow_up)
    world.run()
    # frames of the toy stand at other keys than ids of a prompt, so only the prompt is shared
    assert TEXT.num_tokens - before <= len(answer) + 2 + world.config.page_size + 3
    assert world.logs["b"].entries == alone(follow_up).entries


def test_equal_audio_is_encoded_once_and_other_audio_shares_nothing() -> None:
    clip = EncodeInput("clip", np.float32([0.2, -0.1, 0.3]))
    other = EncodeInput("clip", -clip.values)
    assert clip.digest == EncodeInput("clip", clip.values.copy()).digest != other.digest
    world = World()
    before, kept_bytes = SPEECH.num_encoded, []
    for i, audio in enumerate((clip, clip, other)):
        made = toy_request(str(i), 1, seed=5, frames=8)
        made = replace(made, prompt=ToyPrompt(SHARED[:9], (audio,)))
        world.submit(made)
        world.run()
        assert world.logs[str(i)].entries == alone(made).entries
        kept_bytes.append(world.engine.load["toy"]["encoded_bytes"])
    assert world.logs["0"].entries == world.logs["1"].entries != world.logs["2"].entries
    assert SPEECH.num_encoded - before == 2 + 3, "two in this world, one in each world alone"
    assert kept_bytes[0] > 0
    assert kept_bytes == [kept_bytes[0], kept_bytes[0], 2 * kept_bytes[0]]


def test_uncacheable_request_frees_its_pages() -> None:
    world = World()
    world.submit(replace(request("once", (1, 2)), cacheable=False))
    world.run()
    load = world.engine.load["text"]
    assert load["free_pages"] == load["pages"]
    world.submit(request("again", (1, 2)))
    world.run()
    load = world.engine.load["text"]
    assert load["free_pages"] < load["pages"] == load["available_pages"]
    assert world.logs["once"].entries == world.logs["again"].entries
    world.check_nothing_is_lost()
