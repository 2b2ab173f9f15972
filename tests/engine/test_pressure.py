"""Preemption, pauses and failures of neighbours do not change a request's log."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.cache.pages import pages_for
from izwi.request.request import Reason, Request
from izwi.scheduler import deadline
from tests.backends.kinds import needs_mlx
from tests.engine.ahead import ahead_of
from tests.engine.toy import toy_request
from tests.engine.world import PAGE, World, alone
from tests.examples import examples

LAST_EVENT = 30 + 60 + 60  # the latest arrival, age and pause
LONGEST = 20 + 2 + 24  # prompt, audio, entries


@dataclass(frozen=True)
class Timeline:
    """One request and what happens to it, in steps."""

    request: Request
    arrives: int
    pauses: tuple[tuple[int, int], ...]  # at, for how long
    aborted: int | None
    pieces: tuple[int, ...] | None  # text ids that are written at each step, if it is streamed


@st.composite
def timelines(draw: st.DrawFn, number: int) -> Timeline:
    shared = draw(st.booleans())
    speaks = draw(st.sampled_from([True, True, False]))
    seed = draw(st.integers(0, 3)) if shared else 10 + number * 7 + draw(st.integers(0, 3))
    request = toy_request(
        str(number),
        draw(st.integers(1, 20)),
        seed=seed,
        frames=draw(st.sampled_from([24, 24, 16, 8, 1])),
        audio=draw(st.integers(0, 2)),
        model="toy" if speaks else "text",
        priority=draw(st.integers(-1, 1)),
        streams=draw(st.booleans()),
        listener=draw(st.sampled_from(["", "", "ann"])),
    )
    pauses = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=2))
    aborted = draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 60)))
    pieces = None
    if speaks and draw(st.booleans()):
        request = replace(request, open_input=True)
        pieces = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))
    # half of them are spared the end that chance would bring early
    request = replace(request, stop_ids=()) if draw(st.booleans()) else request
    return Timeline(request, draw(st.integers(0, 20)), tuple(pauses), aborted, pieces)


@st.composite
def crowds(draw: st.DrawFn) -> list[Timeline]:
    return [draw(timelines(number)) for number in range(draw(st.integers(2, 8)))]


def text_of(timeline: Timeline) -> list[int]:
    return [1 + (7 * i + timeline.request.seed) % 29 for i in range(sum(timeline.pieces or ()))]


def undisturbed(timeline: Timeline) -> Request:
    """The same request with all its text there from the start."""
    if timeline.pieces is None:
        return timeline.request
    prompt = replace(timeline.request.prompt, track=tuple(text_of(timeline)))  # type: ignore[type-var]
    return replace(timeline.request, prompt=prompt, open_input=False)


def live_through(world: World, crowd: list[Timeline], now: int, written: dict[str, int]) -> None:
    """Apply the events that are due at this step."""
    for timeline in crowd:
        name = timeline.request.request_id
        if timeline.arrives == now:
            world.submit(timeline.request)
        age = now - timeline.arrives
        if age < 0 or name not in world.logs:
            continue
        for at, duration in timeline.pauses:
            if age == at:
                world.engine.pause(name)
            if age == at + duration:
                world.engine.resume(name)
        if timeline.aborted == age:
            world.deliver(world.engine.abort(name))
        if timeline.pieces is not None and age < len(timeline.pieces):
            done = written.get(name, 0)
            written[name] = done + timeline.pieces[age]
            text = text_of(timeline)[done : written[name]]
            world.engine.write(name, text, closed=age == len(timeline.pieces) - 1)


CIRCUMSTANCES = {
    "spare_pages": st.sampled_from([0, 0, 1, 3, 8, 24]),
    "max_step_tokens": st.integers(8, 40),
    "max_running": st.sampled_from([1, 2, 4, 8]),
    "policy": st.sampled_from(["fcfs", "priority", "deadline"]),
    "host_bytes": st.sampled_from([0, 20_000, 1 << 20]),
    "ahead": st.booleans(),
    "speculate": st.sampled_from(["off", "ngram"]),
    "far_s": st.sampled_from([0.0, 0.02, 5.0]),
}


@examples(40)
@given(crowd=crowds(), circumstances=st.fixed_dictionaries(CIRCUMSTANCES))
def test_every_log_is_the_undisturbed_one(
    crowd: list[Timeline], circumstances: dict[str, Any]
) -> None:
    check_logs("torch", crowd, **circumstances)


@needs_mlx
@examples(8)
@given(crowd=crowds(), circumstances=st.fixed_dictionaries(CIRCUMSTANCES))
def test_on_mlx_too_every_log_is_the_undisturbed_one(
    crowd: list[Timeline], circumstances: dict[str, Any]
) -> None:
    check_logs("mlx", crowd, **circumstances)


def check_logs(
    backend: str,
    crowd: list[Timeline],
    *,
    spare_pages: int,
    ahead: bool,
    far_s: float,
    **settings: Any,
) -> None:
    """Live through a crowd's timelines, and compare with each request alone."""
    with (
        ahead_of(backend) if ahead else nullcontext(backend) as kind,
        # soon so far ahead that others take its place
        mock.patch.object(deadline, "FAR_S", far_s),
    ):
        world = World(
            pages_for(LONGEST + 1, PAGE) + spare_pages,
            kind,
            max_wait_s=1e6,
            **settings,
        )
        written: dict[str, int] = {}
        for now in range(6000):
            live_through(world, crowd, now, written)
            world.step()
            if now > LAST_EVENT and not world.engine.has_work:
                break
    assert not world.engine.has_work, "the loop stands still"
    world.check_nothing_is_lost()
    for timeline in crowd:
        log, single = (
            world.logs[timeline.request.request_id],
            alone(undisturbed(timeline), backend=backend),
        )
        if log.reason is Reason.ABORTED:
            assert log.entries == single.entries[: len(log.entries)]
            assert log.pcm == single.pcm[: len(log.pcm)]
        else:
            assert log.error is None
            assert log.entries == single.entries
            assert log.pcm == single.pcm
            assert log.reason == single.reason
