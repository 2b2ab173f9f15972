"""Audio that is made during the next step is the same, and first audio is sent at once.

Here the audio itself is made as usual; only the loop waits.
"""

from __future__ import annotations

import pytest

from izwi.request.request import Reason
from izwi.runner.runner import Runner
from tests.engine.toy import toy_request
from tests.engine.world import SPEECH, Log, World, alone, run


@pytest.fixture(autouse=True)
def overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "codec_overlaps", True)


def test_every_request_gets_the_same_output(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [toy_request(str(i), 3 + 5 * i, seed=i, frames=25, audio=i % 3) for i in range(8)]
    world = World(max_running=5)
    found = run(world, requests)
    world.check_nothing_is_lost()
    monkeypatch.setattr(Runner, "codec_overlaps", False)
    plain = run(World(max_running=5), requests)
    for name, log in plain.items():
        assert found[name].entries == log.entries
        assert found[name].pcm == log.pcm
        assert found[name].chunks == log.chunks
        assert found[name].reason is log.reason


def test_first_audio_is_sent_at_once_and_later_audio_with_the_next_step() -> None:
    world = World(chunk_ramp=(1, 2))
    world.submit(toy_request("a", 7, seed=4, frames=6))
    log = world.logs["a"]
    reported = []
    while log.reason is None:
        world.step()
        reported.append(sum(log.chunks))
    # the first frame; chunks of two that were begun one step before; the rest, one step after them
    assert reported == [1, 1, 1, 3, 3, 5, 5, 6]
    assert world.engine.is_idle
    assert not world.engine.has_work


def test_aborting_and_pausing_while_audio_is_vocoded() -> None:
    whole = alone(toy_request("a", 7, seed=4, frames=12))
    world = World(chunk_ramp=(1, 2))
    for name in "ab":
        world.submit(toy_request(name, 7, seed=4, frames=12))
    for _ in range(3):  # the second chunks are begun
        world.step()
    world.deliver(world.engine.abort("b"))
    world.engine.pause("a")
    assert not world.engine.has_work
    world.engine.resume("a")
    world.run()
    log: Log = world.logs["a"]
    assert world.logs["b"].reason is Reason.ABORTED
    assert len(world.logs["b"].pcm) == SPEECH.frame_samples
    assert log.pcm == pytest.approx(whole.pcm, abs=1e-6)
    assert log.entries == whole.entries
    world.check_nothing_is_lost()


def test_audio_that_fails_later_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(chunk_ramp=(1, 2))
    begin = Runner.vocode

    def failing(self: Runner, pieces):  # type: ignore[no-untyped-def]
        def lost() -> None:
            raise RuntimeError("the device lost it")

        names = [sequence.request.request_id for sequence, _ in pieces]
        later = [bool(sequence.audio.chunks) for sequence, _ in pieces]
        pending = begin(self, pieces)
        marked = zip(names, later, pending, strict=True)
        return [lost if name == "b" and late else audio for name, late, audio in marked]

    monkeypatch.setattr(Runner, "vocode", failing)
    logs = run(world, [toy_request(name, 7, seed=4, frames=9) for name in "abc"])
    assert logs["b"].reason is Reason.ERROR
    assert str(logs["b"].error) == "the device lost it"
    assert logs["a"].pcm == logs["c"].pcm
    assert logs["a"].reason is not Reason.ERROR
    world.check_nothing_is_lost()
