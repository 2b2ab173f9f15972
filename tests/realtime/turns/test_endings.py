"""A question that hesitates is not answered before it is asked, and a whole one does not wait."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from izwi.inputs.speech import SpeechInput
from izwi_api.realtime.turns.endings import Ending, ending_of
from izwi_api.realtime.turns.rules import SemanticVad
from tests.realtime.make_hesitations import FILE, VOICES, hesitations
from tests.realtime.scenes import happened
from tests.realtime.test_scenes import session
from tests.realtime.world import TTS, World

PAUSE_MS = 1200
# What the embedded transcriber hears of a sentence that breaks off: it often adds a word ("What is
# the theory!"), which no rule tells from a sentence.
LEAST_SHARE_HEARD = 0.5
WHOLE = """
What is it?
Where are you?
Who is that?
What was that?
Where are we?
How are you?
What are you looking for?
Where are you from?
Who is it for?
What is it about?
What are you talking about?
Can I come in?
Is the light on?
What time is it?
When does the train leave?
What should I do?
What do you think?
What do you have?
I don't know what it is.
I know where the station is.
Do you know what time it is?
Thank you.
Yes, it is.
Yes, I can.
No, I don't.
I like it.
I want this.
And you?
What about you?
Why?
When?
Who?
What?
Tell me why.
I don't know why.
Since when?
Turn it on.
Turn on the light.
What is twelve times seven?
How many times?
The train leaves at seven.
It is late.
That's fine.
I think so.
So do I.
How long will it be?
What could it be?
What is this made of?
Who are you talking to?
What is wrong with it?
Where does she come from?
Call my mother.
Set a timer for ten minutes.
Is it open today?
How much does it cost?
My name is Thomas.
Which one?
What else?
That is all.
I have two brothers.
What did he say?
Could you help me?
Good morning.
Please stop.
I do not want to.
What do you mean?
How does it work?
Who did it?
Can you hear me?
My phone number is five five five one two three four five six seven.
My number is 0170 2345678.
What is five plus three?
There are seven.
I would like two.
Give me a minute.
What can you do?
How do you do?
What does it do?
Do the best you can.
Are you there?
Is anyone there?
What is there?
How many are there?
Who is she?
I am here.
What does it look like?
What is it like?
"""


def cut_off():
    return [(said + mark) for said, _ in hesitations() for mark in ("", "?", ".", "...")]


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_a_hesitation_does_not_end_the_turn(eagerness):
    texts = cut_off()
    assert len(texts) == 400
    assert [text for text in texts if SemanticVad(eagerness).wait_ms(text) <= PAUSE_MS] == []


def test_a_whole_sentence_does_not_wait():
    waits = {text: SemanticVad("medium").wait_ms(text) for text in WHOLE.strip().splitlines()}
    assert len(waits) > 80
    assert [text for text, wait_ms in waits.items() if wait_ms > PAUSE_MS] == []


@pytest.mark.parametrize("text", ["How many?", "What time?", "How many metres?"])
def test_what_may_be_half_a_question_waits_a_little(text):
    assert ending_of(text) is Ending.UNKNOWN


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("My phone number is five five five.", Ending.UNFINISHED),
        ("Call me on 0170 23.", Ending.UNFINISHED),
        ("five five five", Ending.UNFINISHED),
        ("My phone number is 555 123 4567.", Ending.FINISHED),
        ("It leaves at seven.", Ending.FINISHED),
        ("What is the capital of?", Ending.UNFINISHED),
        ("Quel est le prix ?", Ending.QUESTION),
        ("我想知道。", Ending.FINISHED),
    ],
)
def test_half_a_phone_number_and_other_languages(text, ending):
    assert ending_of(text) is ending


def test_hesitations_as_they_are_heard():
    rows = json.loads(Path(FILE).read_text(encoding="utf-8"))
    assert [(row["said"], row["rest"]) for row in rows] == hesitations()
    heard = [ending_of(text) for row in rows for text in row["heard"].values()]
    assert len(heard) >= 290
    assert Counter(heard)[Ending.UNFINISHED] >= LEAST_SHARE_HEARD * len(heard)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


def spoken(world, *, said, voice, seed=0):
    """What a voice says, at 24 kHz."""
    engine = world.engine(lambda: 0.0)
    asked = SpeechInput(said, voice, seed=seed)
    engine.submit(world.models.speech(TTS).prepare_speech("said", TTS, asked))
    parts = []
    while engine.has_work:
        parts += [chunk.pcm for chunk in engine.step() if chunk.pcm is not None]
    return np.concatenate(parts)


@pytest.mark.slow  # test_machine.py has the pause of a hesitation
@pytest.mark.parametrize(
    ("said", "rest", "voice", "eagerness"),
    [
        ("What is", "twelve times seven?", "amber", "high"),
        ("How many metres are", "in a mile?", "amber", "auto"),
        ("I would like", "a cup of tea.", "hugo", "auto"),
        ("When does the", "next bus leave?", "amber", "auto"),
    ],
)
def test_a_question_with_a_pause_is_one_turn(world, said, rest, voice, eagerness):
    assert voice in VOICES
    before, behind = (spoken(world, said=text, voice=voice) for text in (said, rest))

    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(before)
        await phone.be_silent(PAUSE_MS / 1000)
        await phone.hear(behind)
        await phone.until_answered()

    phone = world.talk(script, session=session(type="semantic_vad", eagerness=eagerness))
    assert happened(phone) == "SERD"
