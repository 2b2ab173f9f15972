"""Train the voice further in one go on 1 to 4 GPUs of a host: corpus, codec, talker, figures.

The codec must be finished before the talker starts, because the talker learns its codes: it
encodes the corpus again when it begins. Both go on from the checkpoint in OUT, which is a copy of
the embedded one at first, and write it every minute or so. `run.json` in OUT says which stages are
finished, and how long the others have run; the same command goes on where an earlier one ended.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

_RECIPES = "izwi_models.tiny.recipes"
EMBEDDED = Path(__file__).parents[1]
LARGEST_FILE = 16 * 2**20  # bytes
_SAVE_EVERY_S = 45
_SHARES = {"codec": 0.42, "talker": 0.58}  # of the time that is left for training
_AROUND_S = 150.0  # for the corpus, starting, encoding it and the figures
# What the committed codec was trained with, and gaps twice as much.
_CODEC_AIMS = (
    *("--rate", "3e-4", "--low-band", "1.5", "--cutoff", "1200", "--gaps", "20"),
    *("--perception", "2.5", "--periodicity", "1.5", "--adversary-from", "0.15"),
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A command of the run.

    Attributes:
        name: Under which `run.json` has it.
        command: What is executed.
        seconds: How long it trains; 0 where it ends by itself.
    """

    name: str
    command: tuple[str, ...]
    seconds: float = 0.0


def plan(
    options: argparse.Namespace, ran_s: Mapping[str, float], finished: set[str], gpus: int
) -> list[Stage]:
    """List the stages that are left.

    Args:
        options: The command line's.
        ran_s: How long stages that were interrupted have trained already, by name.
        finished: Names of stages that are done.
        gpus: How many there are; 0 trains on the CPU.
    """
    training_s = options.minutes * 60 - _AROUND_S
    if training_s <= 0:
        raise SystemExit(f"--minutes must be more than {_AROUND_S / 60:g}")
    work, out = Path(options.work), Path(options.out)
    data, python = work / "data", (sys.executable, "-m")
    torchrun = ("torch.distributed.run", "--standalone", "--nproc_per_node", str(gpus), "-m")
    train = (*python, *torchrun) if gpus > 1 else python
    left_s = {
        name: max(1.0, share * training_s - ran_s.get(name, 0.0)) for name, share in _SHARES.items()
    }
    batch = ("--batch", "1" if gpus == 1 else "0.5")
    listener = ("--listener", str(EMBEDDED / "izwi-tiny-asr"))

    def timed(name: str) -> tuple[str, ...]:
        return ("--seconds", f"{left_s[name]:.0f}", "--save-every", str(_SAVE_EVERY_S))

    codec = (*timed("codec"), *batch, *listener, *_CODEC_AIMS)
    talker = (*timed("talker"), "--positions", "16384", "--rate", "1e-3", "--repeat-short", "1")
    speech = (str(work / "text"), str(data), "--number", str(options.sentences))
    stages = [
        Stage("text", (*python, f"{_RECIPES}.text", str(work / "text"), "--number", "200000")),
        Stage("speech", (*python, f"{_RECIPES}.speech", *speech, "--joined", "0.5")),
        Stage("codec", (*train, f"{_RECIPES}.codec", str(data), str(out), *codec), left_s["codec"]),
        Stage(
            "talker", (*train, f"{_RECIPES}.talker", str(data), str(out), *talker), left_s["talker"]
        ),
        Stage(
            "figures",
            (
                *(*python, f"{_RECIPES}.evaluate", str(data), str(out)),
                *(str(EMBEDDED / "izwi-tiny-asr"), "--out", str(out / "figures.json")),
            ),
        ),
    ]
    return [stage for stage in stages if stage.name not in finished]


class Progress:
    """`run.json`: what is finished, and how long the rest has trained."""

    def __init__(self, out: Path):
        self._path = out / "run.json"
        state = json.loads(self._path.read_text("utf-8")) if self._path.is_file() else {}
        self.finished: set[str] = set(state.get("finished", ()))
        self.ran_s: dict[str, float] = dict(state.get("ran_s", {}))

    def note(self, stage: Stage, seconds: float, finished: bool) -> None:
        """Write down that a stage has run for so long, or is finished."""
        if finished:
            self.finished.add(stage.name)
        self.ran_s[stage.name] = self.ran_s.get(stage.name, 0.0) + seconds
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"finished": sorted(self.finished), "ran_s": self.ran_s}))
        part.replace(self._path)


def begin(out: Path) -> None:
    """Copy the embedded checkpoint where there is none."""
    if not (out / "model.safetensors").is_file():
        shutil.copytree(EMBEDDED / "izwi-tiny-tts", out, dirs_exist_ok=True)


def run(stage: Stage, progress: Progress) -> None:
    """Execute a stage, and write down every few seconds how long it has run.

    Raises:
        SystemExit: It failed.
    """
    print("+", *stage.command, flush=True)
    process = subprocess.Popen(stage.command)
    noted = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(1)
            if time.monotonic() - noted > _SAVE_EVERY_S:  # what was saved of it since then stays
                progress.note(stage, time.monotonic() - noted, finished=False)
                noted = time.monotonic()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        raise SystemExit(f"{stage.name} failed with status {process.returncode}")
    progress.note(stage, time.monotonic() - noted, finished=True)


def too_large(out: Path) -> list[str]:
    """Name the weight files that are larger than a result may be."""
    found = (path for path in out.rglob("*.safetensors") if path.stat().st_size > LARGEST_FILE)
    return sorted(str(path.relative_to(out)) for path in found)


def main() -> None:
    """Run the stages that are left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder for text and speech")
    parser.add_argument("out", type=Path, help="checkpoint folder; made if it is missing")
    parser.add_argument("--minutes", type=float, default=25, help="of all stages together")
    parser.add_argument("--sentences", type=int, default=170_000)
    options = parser.parse_args()
    begin(options.out)
    progress = Progress(options.out)
    gpus = min(4, torch.cuda.device_count())
    for stage in plan(options, progress.ran_s, progress.finished, gpus):
        run(stage, progress)
    if files := too_large(options.out):
        raise SystemExit(f"larger than 16 MiB: {', '.join(files)}")


if __name__ == "__main__":
    main()
