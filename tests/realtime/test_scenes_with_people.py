"""The scenes again, spoken by voices that were built from recordings of people."""

from __future__ import annotations

import pytest

from tests.realtime.people_voices import PEOPLE, sounds_by
from tests.realtime.scenes import SCENES, happened, play
from tests.realtime.world import World, spoken_by

pytestmark = pytest.mark.slow

# The transcriber hears "Uh-huh." of these voices as "Among!", "Right." as "Bye.", which interrupts;
# and a flite voice 25 dB below another keeps its turn open.
SHORTFALLS = ("mm-hm", "mm-hm over an echo", "right", "people talk far away")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


@pytest.fixture(scope="module", params=PEOPLE)
def person(request):
    """A person speaks in the scenes; yields the name."""
    if not (sounds := sounds_by(request.param)):
        pytest.skip(f"{request.param}: packages of benchmarks.quality.people_speech are missing")
    with spoken_by(sounds):
        yield request.param


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(reason="SHORTFALLS says why", strict=False))
        if name in SHORTFALLS
        else name
        for name in SCENES
    ],
)
def test_a_scene_with_a_person_gives_the_same_events(world, person, name):
    scene = SCENES[name]
    phone = play(world, scene)
    words = [
        happened.event["transcript"]
        for happened in phone.of("conversation.item.input_audio_transcription.completed")
    ]
    assert happened(phone) == scene.happens, words
    assert phone.num_left == 0
