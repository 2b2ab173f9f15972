"""A television beside the user is not answered; a user who speaks more softly is."""

from __future__ import annotations

import numpy as np
import pytest

from izwi_api.realtime.hearing.overlap import OverlapCheck
from tests.realtime.hearing.test_background import frames
from tests.realtime.scenes import happened
from tests.realtime.test_scenes import COMPLETED, session
from tests.realtime.turns.test_endings import spoken
from tests.realtime.world import World, recorded, rms


def known(level_db=-20.0):
    """A check that knows the user's level."""
    check = OverlapCheck()
    for frame in frames(level_db, 100):
        check.is_room(frame, False, False)
    check.begin_answer()
    return check


@pytest.mark.parametrize(("below_db", "begins"), [(6, True), (9, True), (12, False), (15, False)])
def test_a_turn_begins_with_speech_near_the_users_level(below_db, begins):
    check = known()
    far = [check.is_room(frame, False, False) for frame in frames(-20.0 - below_db, 20)]
    assert far == [not begins] * 20
    assert check.is_soft == (not begins)


def test_within_a_turn_soft_speech_counts_for_a_while():
    check = known()
    assert not check.is_room(frames(-20.0, 1)[0], False, True)
    far = [check.is_room(frame, False, True) for frame in frames(-33.0, 60)]
    assert far[:25] == [False] * 25
    assert far[26:] == [True] * 34
    assert check.is_soft
    check.is_room(frames(-45.0, 1)[0], False, True)
    assert not check.is_soft


def test_a_user_who_speaks_softly_from_now_on_is_heard_in_the_end():
    check = known()
    soft = frames(-33.0, 1)[0]
    assert all(check.is_room(soft, False, False) for _ in range(2500))
    for _ in range(2500):
        is_room = check.is_room(soft, False, False)
    assert not is_room


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


def at(name, below_db):
    """A recorded sound so far below the question."""
    audio = recorded(name)
    return audio * np.float32(rms(recorded("question")) / rms(audio) * 10 ** (-below_db / 20))


@pytest.mark.parametrize("name", ["woman-talks", pytest.param("man-talks", marks=pytest.mark.slow)])
def test_a_television_is_not_answered_and_the_user_is(world, name):
    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await phone.until_answered()
        await phone.be_silent(0.5)
        await phone.hear(at(name, 15.0))
        await phone.be_silent(1.0)
        await phone.hear(at("question", 6.0))
        await phone.until_answered()

    assert happened(world.talk(script, session=session())) == "SERDSERD"


@pytest.mark.slow  # test_machine.py has a first word that was lost
@pytest.mark.parametrize("below_db", [10.0, 5.0])
def test_the_first_word_is_heard_over_music(world, below_db):
    """The chord counts as music, and so do the first frames of the question over it."""

    async def script(phone, engine):
        await phone.be_silent(1.6)
        await phone.hear(spoken(world, said="What is twelve times seven?", voice="hugo"))
        await phone.until(COMPLETED)

    phone = world.talk(
        script, session=session(create_response=False), background=at("pad", below_db)
    )
    (heard,) = phone.of(COMPLETED)
    assert heard.event["transcript"].startswith("What is")


@pytest.mark.slow  # test_machine.py has a first word that was lost
@pytest.mark.parametrize("above_db", [5.0, 10.0])
@pytest.mark.parametrize("voice", ["felix", "amber", "hugo"])
def test_the_first_word_of_soft_speech_in_noise_is_heard(world, voice, above_db):
    """At -45 dBFS. Of the first word, only the vowel is above the noise, and a pause follows."""
    said = spoken(world, said="What is twelve times seven?", voice=voice, seed=1)
    said = said * np.float32(10 ** (-45 / 20) / loud_rms(said))
    noise = pink(np.random.default_rng(1)) * np.float32(10 ** ((-45 - above_db) / 20))

    async def script(phone, engine):
        await phone.be_silent(2.0)
        await phone.hear(said)
        await phone.until(COMPLETED)

    phone = world.talk(script, session=session(create_response=False), background=noise)
    (heard,) = phone.of(COMPLETED)
    assert heard.event["transcript"].startswith("What is")


def loud_rms(samples):
    """The level of the loudest fifth of the blocks of 20 ms."""
    blocks = samples[: len(samples) // 480 * 480].reshape(-1, 480)
    return np.sqrt(np.percentile(np.mean(np.square(blocks), axis=1), 80))


def pink(chance, size=72_000):
    """Noise with 3 dB less power each octave, at a power of 1."""
    spectrum = np.fft.rfft(chance.normal(size=size))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0.0
    noise = np.fft.irfft(spectrum, size)
    return (noise / rms(noise)).astype(np.float32)
