"""Which short sounds over an answer interrupt it: words, backchannels, coughs, knocks, laughs.

`python -m benchmarks.live.interruptions [--only PART_OF_NAME ...]` plays each recording of
`tests/realtime/sounds/short` over the answer of a live session in virtual time, with the embedded
transcriber, and prints the last transcript and whether the answer was cut.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
import soundfile

from izwi_api.realtime.dialogue import Dialogue
from izwi_api.realtime.turns.events import Event, LiveTranscript
from tests.realtime.phone import at_24_khz
from tests.realtime.scenes import happened
from tests.realtime.sounds.make_short_sounds import SHORT
from tests.realtime.world import World, recorded

SESSION = {
    "audio": {
        "input": {
            "turn_detection": {"type": "server_vad"},
            "transcription": {"model": "whisper-1"},
        }
    }
}


def play(world: World, path: Path, heard: list[str]) -> str:
    """Play a recording over an answer; return the events, in the letters of the scenes."""
    audio = at_24_khz(*soundfile.read(path, dtype="float32"))

    async def script(phone, _):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await phone.until_sent(0.6)
        heard.clear()
        await phone.hear(audio)
        await phone.be_silent(1.0)

    return happened(world.talk(script, session=SESSION))


def main() -> None:
    """Print a line for each recording, and how many recordings of each kind interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    only = parser.parse_args().only
    heard: list[str] = []
    tell = Dialogue._advance_turns

    def noting(self: Dialogue, event: Event) -> str | None:
        if isinstance(event, LiveTranscript):
            heard.append(event.text)
        return tell(self, event)

    cuts = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setattr(Dialogue, "_advance_turns", noting)
        world = World(Path(home), patch)
        for path in sorted(SHORT.glob("*.opus")):
            if any(part in path.stem for part in only):
                is_cut = "X" in play(world, path, heard)
                cuts[path.stem.split("-")[0]].append(is_cut)
                print(f"{path.stem:24} {'cut' if is_cut else 'goes on':8} {heard}", flush=True)
    for kind, each in cuts.items():
        print(f"{kind}: {sum(each)} of {len(each)} interrupted")


if __name__ == "__main__":
    main()
