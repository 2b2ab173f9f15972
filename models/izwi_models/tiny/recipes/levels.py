"""Make the named voices of a checkpoint equally loud, by gains in its configuration.

Training learns what the corpus has, to about 2 LU. A gain is exact, costs nothing and can be
measured again: run this after each training of the talker or of the codec.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from izwi.inputs.speech import TextMode
from izwi_models.tiny.recipes.decoding import Sampling, Speaker
from izwi_models.tiny.recipes.loudness import loudness

LUFS = -22.0  # between the loudest and the quietest voice, so that no voice is raised much
SENTENCES = (
    "The train to Oxford leaves at half past nine tomorrow morning.",
    "Please bring two bottles of water and some bread.",
    "I would like to know what the weather is like today.",
    "She walked along the river until the sun went down.",
    "There are twelve apples in the basket.",
    "Could you tell me where the station is?",
    "We have not heard from him since last winter.",
    "My sister works in a small hospital near the sea.",
)
_MOST_FRAMES = 200


def measured(speaker: Speaker, voice: str, seeds: Sequence[int]) -> float:
    """Return the mean loudness in LUFS of a voice that says all sentences with each seed."""
    levels = []
    for seed in seeds:
        codes = speaker.speak(
            list(SENTENCES),
            [voice] * len(SENTENCES),
            TextMode.FULL,
            Sampling(),
            seed=seed,
            most_frames=_MOST_FRAMES,
        )
        levels += [float(loudness(audio[None].float())) for audio in speaker.audio(codes)]
    return sum(levels) / len(levels)


def gains(levels: Mapping[str, float]) -> dict[str, float]:
    """Return the gain in dB, to a tenth, that brings each voice from its level to LUFS."""
    return {voice: round(LUFS - level, 1) for voice, level in levels.items()}


def main() -> None:
    """Measure all voices and write their gains into config.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of izwi-tiny-tts")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    path = args.checkpoint / "config.json"
    config = json.loads(path.read_text("utf-8"))
    speaker = Speaker(args.checkpoint, torch.device("cpu"))
    levels = {
        voice: measured(speaker, voice, range(args.seeds))
        for voice in config["talker_config"]["spk_id"]
    }
    for voice, level in levels.items():
        print(f"{voice}: {level:.2f} LUFS", flush=True)
    config["spk_gain_db"] = gains(levels)
    path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
