"""Recorded conversations through whole sessions, in virtual time: what follows from each sound."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from izwi_api.services.answer_figures import TurnEvent
from tests.realtime.scenes import AT_NIGHT, SCENES, happened, play, session
from tests.realtime.world import World, recorded

DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"
# Audio is sent in pieces of 40 ms, 250 ms ahead of its playback.
PAUSED_S = 0.12


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


@pytest.fixture(scope="module")
def question(world):
    """The first scene, played once."""
    return play(world, SCENES["a question"])


@pytest.fixture(scope="module")
def undisturbed(question):
    """The audio of an answer over which there is no sound."""
    audio = question.audio()
    assert len(audio) > 2 * 48_000
    return audio


assert set(AT_NIGHT) < set(SCENES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in AT_NIGHT else name for name in SCENES],
)
def test_each_scene_gives_the_expected_events(world, question, undisturbed, name):
    scene = SCENES[name]
    phone = question if name == "a question" else play(world, scene)
    heard = phone.of(COMPLETED)
    words = [happened.event["transcript"] for happened in heard]
    assert happened(phone) == scene.happens, words
    assert phone.num_left == 0
    answers = [made.event["response"]["id"] for made in phone.of("response.created")]
    if scene.is_undisturbed:
        assert [phone.audio(answer) == undisturbed for answer in answers] == [True] * len(answers)
    if scene.pauses is not None:
        assert (phone.longest_wait_s > PAUSED_S) == scene.pauses
    if scene.prepared is not None:
        assert phone.prepared == scene.prepared
    assert phone.turns.count(TurnEvent.CONFIRMED) == scene.happens.count("X")
    assert phone.turns.count(TurnEvent.ENDED) >= scene.happens.count("E")
    for answer in phone.of("response.done"):
        sent = [e.at_s for e in phone.of("response.output_audio.delta")
                if e.event["response_id"] == answer.event["response"]["id"]]  # fmt: skip
        assert max(sent, default=0.0) <= answer.at_s, "audio after the end of an answer"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("silero_vad") is None, reason="pip install 'izwi[silero]'")
@pytest.mark.parametrize("name", SCENES)
def test_each_scene_gives_the_expected_events_with_silero(world, undisturbed, name):
    scene = SCENES[name]
    phone = play(world, scene, live_vad="silero")
    assert happened(phone) == (scene.happens if scene.by_silero is None else scene.by_silero)
    answers = [made.event["response"]["id"] for made in phone.of("response.created")]
    if scene.is_undisturbed:
        assert [phone.audio(answer) == undisturbed for answer in answers] == [True] * len(answers)


def test_an_answer_prepared_for_a_client_that_leaves_is_counted_as_unused(world):
    async def leaving(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        while not engine.live:
            await phone.be_silent(0.04)

    phone = world.talk(leaving)
    assert phone.prepared == [False]
    assert not phone.of("response.created")


@pytest.mark.slow
def test_words_are_sent_while_the_user_speaks(world):
    async def script(phone, _):
        await phone.be_silent(0.4)
        await phone.hear(recorded("long"))
        await phone.until(COMPLETED)

    phone = world.talk(script, session=session())
    (stopped,) = phone.of("input_audio_buffer.speech_stopped")
    early = [e.event["delta"] for e in phone.of(DELTA) if e.at_s < stopped.at_s - 1]
    assert len(early) > 1
    (heard,) = phone.of(COMPLETED)
    deltas = "".join(e.event["delta"] for e in phone.of(DELTA))
    assert 2 * len("".join(early).split()) > len(deltas.split()), "most words come at the end"
    # the transcriber begins anew after each pause, and may then hear the last word otherwise
    assert len(deltas) > 40
    assert heard.event["transcript"].startswith(deltas.rsplit(maxsplit=3)[0])
