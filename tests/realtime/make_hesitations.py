"""Make hesitations.json: what the embedded transcriber hears of 100 hesitations by three voices.

python -m tests.realtime.make_hesitations
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import soxr

from izwi.inputs.speech import SpeechInput
from izwi_api.realtime.hearing.input_audio import LiveTranscriber
from izwi_api.realtime.protocol.settings import Transcription
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from izwi_api.settings import Settings
from tests.realtime.virtual import SteppedEngine, run_virtually
from tests.realtime.world import TTS, World

FILE = Path(__file__).parent / "hesitations.json"
VOICES = ("amber", "hugo", "clara")
# Said before a pause of 1.2 s | said behind it.
HESITATIONS = """
What is | twelve times seven?
How many metres are | in a mile?
What is the capital of | France?
I would like to know, um | when the train leaves.
What is the | fastest way to the station?
How far is it from | here to the river?
When does the | next bus leave?
Where can I | find a doctor?
How do I | get to the airport?
How long does it | take by bus?
Could you | help me with this?
Can you tell me | how late it is?
I would like | a cup of tea.
I would like to | book a table.
I need | a ticket to the city.
I need to | see a doctor.
I want | two tickets.
I want to | go home.
Is there | a bus on Sunday?
Are there | any trains today?
Do you know | when it opens?
Do you have | a table for two?
What time does the | shop close?
What time is it in | Tokyo?
Who is | the president?
Who was the | first man on the moon?
Why is the | sky blue?
Why do | cats sleep so much?
Tell me | a story.
Tell me about | the weather tomorrow.
Give me | the news.
Show me | the way.
Remind me to | call my brother.
Please remind me | at seven.
Set a timer for | ten minutes.
Wake me up at | six in the morning.
Turn on the | light.
Play something by | the Beatles.
Call my | mother.
Send a message to | Peter.
What is twelve times | seven?
What is seven plus | eight?
Divide ninety by | three.
My phone number is five five | five one two three.
My number is oh one seven | two three four five.
You can call me on four four two | oh seven nine.
The number is | twelve.
My name is | Thomas.
My address is | seven Garden Street.
I live in | the north.
I come from | a small town.
I work for | the city.
I was at the | market yesterday.
I think | it was on Monday.
I think that | we should go.
I mean | the other one.
I was wondering | if you can help.
I was thinking about | the summer.
I am looking for | a hotel.
I am trying to | open the door.
I have a question about | the train.
I have | two brothers.
We are | going to the sea.
We were in | the garden.
We want to | stay for a week.
They said that | it would rain.
He asked me when | the train leaves.
She told me to | wait for her.
It is | on the table.
It was a | very long day.
There is a | problem with the door.
That is because | the bus was late.
The reason is that | we have no time.
Because | it is cold.
If | it rains, will the bus come?
If you | have time, call me.
When I | was a child, we lived here.
And | what about Sunday?
And then | we went home.
But | is it open today?
So | what should I do?
The | red one.
Between | five and six.
From | Monday to Friday.
How about | tomorrow?
What about the | other train?
What kind of | bread is this?
What do you | think of it?
Which of the | two is better?
Whose | book is this?
In order to | get there, which bus do I take?
As well as | the other one.
For example | the train at seven.
More than | ten people.
Instead of | tea, I would like water.
The price of the | ticket is too high.
Is it possible to | change the ticket?
Would it be | better on Monday?
Should I | take the bus?
Will you | be there?
"""


def hesitations():
    """Each as what is said before and behind the pause."""
    lines = HESITATIONS.strip().splitlines()
    return [tuple(part.strip() for part in line.split("|")) for line in lines]


def main():
    """Speak what is before each pause, and write down what is heard."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        world = World(Path(home), patch)
        rows = run_virtually(_heard(world, Path(home)), limit_s=1e6)
    FILE.write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


async def _heard(world, home):
    engine = SteppedEngine(world.engine)
    services = Services(engine, ServedModels(engine, world.registry), Settings(home=home), None)
    rows = []
    for said, rest in hesitations():
        heard = {}
        for seed, voice in enumerate(VOICES):
            asked = SpeechInput(said, voice, seed=seed)
            request = world.models.speech(TTS).prepare_speech(f"{said}-{voice}", TTS, asked)
            parts = [chunk.pcm async for chunk in engine.submit(request) if chunk.pcm is not None]
            audio = soxr.resample(np.concatenate(parts), 24_000, 16_000).astype(np.float32)
            noise = np.random.default_rng(seed).normal(size=len(audio) + 3200) * 3e-4
            noise[: len(audio)] += audio
            listener = LiveTranscriber(
                services, Transcription(model="izwi-tiny-asr"), lambda *_: None
            )
            listener.feed(noise.astype(np.float32))
            heard[voice] = await listener.finish()
        rows.append({"said": said, "rest": rest, "heard": heard})
    await engine.stop()
    return rows


if __name__ == "__main__":
    main()
