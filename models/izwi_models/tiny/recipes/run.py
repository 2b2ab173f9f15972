"""Continue training the voice on 1 to 4 GPUs of a host: corpus, codec, talker, figures.

The codec stage ends before the talker stage starts, because the talker learns the codec's codes; it
encodes the corpus when it starts. The codec's decoder goes on beside the talker, on the last GPU,
because it does not change the codes. Without the codec stage the codes stay the same. The
transcriber has a run of its own (`people/run.py`).

OUT/izwi-tiny-tts begins as a copy of the embedded checkpoint, and is written about every minute.
`run.json` in OUT records which stages are finished and how long the others have run; the same
command continues an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_RECIPES = "izwi_models.tiny.recipes"
EMBEDDED = Path(__file__).parents[1]
TTS, ASR = "izwi-tiny-tts", "izwi-tiny-asr"
LARGEST_FILE = 16 * 2**20  # bytes
_SAVE_EVERY_S = 45
_CODEC_SHARE = 0.42  # share of the voice's training time
_DECODER_JOBS = "60"  # parts of the corpus: a captured step with discriminators failed on more
# Seconds for starting, reading and encoding the corpus, and for the stages that are not timed.
_START_S = 50.0
_UNTIMED_S = {"text": 0.0, "speech": 60.0, "figures": 40.0}
STAGES = ("text", "speech", "codec", "decoder", "talker", "figures")
# Options of the committed codec's training, first as a whole, then of the decoder alone. With the
# discriminators a captured step of the whole codec fails (README).
_AIMS = (
    *("--low-band", "1.5", "--cutoff", "1200", "--gaps", "20"),
    *("--perception", "2.5", "--periodicity", "1.5"),
)
_CODEC_AIMS = (*_AIMS, "--rate", "4e-4", "--phones", "1", "--adversary-from", "2")
_DECODER_AIMS = (*_AIMS, "--rate", "3e-4", "--phones", "0.5", "--adversary-from", "0.15")


@dataclass(frozen=True, slots=True)
class Stage:
    """A command of the run.

    Attributes:
        name: Name in `run.json`.
        command: The command line.
        seconds: Training time; 0 if the command ends by itself.
        after: Stage that must be finished first, besides those before it in its list.
    """

    name: str
    command: tuple[str, ...]
    seconds: float = 0.0
    after: str = ""


def training_seconds(options: argparse.Namespace, ran_s: Mapping[str, float]) -> dict[str, float]:
    """Divide the time; return the remaining training seconds of each stage.

    Raises:
        SystemExit: Nothing is left for training.
    """
    around_s = _START_S + sum(_UNTIMED_S.get(name, 0.0) for name in options.stages)
    total_s = options.minutes * 60 - around_s
    if total_s <= 0:
        raise SystemExit(f"--minutes must be more than {around_s / 60:g}")
    codec = _CODEC_SHARE if "codec" in options.stages else 0.0
    codec = codec if {"talker", "decoder"} & set(options.stages) else float(codec > 0)
    shares = {"codec": codec}
    shares["talker"] = shares["decoder"] = 1.0 - codec
    return {
        name: max(1.0, share * total_s - ran_s.get(name, 0.0)) for name, share in shares.items()
    }


def plan(
    options: argparse.Namespace, ran_s: Mapping[str, float], finished: set[str], gpus: int
) -> list[Stage]:
    """List the stages that are left.

    Args:
        options: Options of the command line.
        ran_s: Seconds that interrupted stages have trained already, by name.
        finished: Names of finished stages.
        gpus: Number of GPUs; 0 trains on the CPU.

    Raises:
        SystemExit: Nothing is left for training.
    """
    left_s = training_seconds(options, ran_s)
    work, tts = Path(options.work), str(options.out / TTS)
    data, python = str(work / "data"), (sys.executable, "-m")
    alone = gpus > 1 and "decoder" in options.stages  # the decoder has a GPU of its own
    batch = ("--batch", "1" if gpus == 1 else "0.5")
    listener = str(EMBEDDED / ASR)

    def timed(name: str) -> tuple[str, ...]:
        return ("--seconds", f"{left_s[name]:.0f}", "--save-every", str(_SAVE_EVERY_S))

    codec = (*timed("codec"), *batch, "--listener", listener, *_CODEC_AIMS)
    decoder = (*timed("decoder"), "--batch", "0.5", "--listener", listener, *_DECODER_AIMS)
    decoder += ("--decoder-only", "--jobs", _DECODER_JOBS)
    talker = (*timed("talker"), "--positions", "16384", "--rate", "1e-3", "--repeat-short", "2")
    text = str(work / "text")
    speech: tuple[str, ...] = (text, data, "--number", str(options.sentences), "--joined", "0.5")
    commands = {
        "text": (*python, f"{_RECIPES}.text", text, "--number", "200000"),
        "speech": (*python, f"{_RECIPES}.speech", *speech),
        "codec": (*_trained_on(gpus), f"{_RECIPES}.codec", data, tts, *codec),
        "decoder": (*_last_of(gpus), *python, f"{_RECIPES}.codec", data, tts, *decoder),
        "talker": (*_trained_on(gpus - alone), f"{_RECIPES}.talker", data, tts, *talker),
        "figures": (
            *(*python, f"{_RECIPES}.evaluate", data, tts),
            *(listener, "--out", str(options.out / "figures.json")),
        ),
    }
    after = {"decoder": "codec", "figures": "decoder"}
    return [
        Stage(name, commands[name], left_s.get(name, 0.0), after.get(name, ""))
        for name in STAGES
        if name in options.stages and name not in finished
    ]


def _trained_on(gpus: int) -> tuple[str, ...]:
    """Return the start of a command that trains on the first `gpus` GPUs, or on the CPU."""
    torchrun = ("torch.distributed.run", "--standalone", "--nproc_per_node", str(gpus), "-m")
    return (sys.executable, "-m", *(torchrun if gpus > 1 else ()))


def _last_of(gpus: int) -> tuple[str, ...]:
    """Return the start of a command that sees the last GPU only."""
    return ("env", f"CUDA_VISIBLE_DEVICES={gpus - 1}") if gpus > 1 else ()


def sequences(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Divide stages into those that run first, and lists that run at the same time.

    Returns:
        The stages that must finish first, then lists that may run at the same time.
    """
    first = [stage for stage in stages if stage.name in ("text", "speech")]
    decoder = [stage for stage in stages if stage.name == "decoder"]
    voice = [stage for stage in stages if stage not in (*first, *decoder)]
    return [first, *filter(None, (voice, decoder))]


class StageProgress:
    """`run.json`: finished stages, and the training time of the others."""

    def __init__(self, out: Path):
        self._path = out / "run.json"
        state = json.loads(self._path.read_text("utf-8")) if self._path.is_file() else {}
        self.finished: set[str] = set(state.get("finished", ()))
        self.ran_s: dict[str, float] = dict(state.get("ran_s", {}))

    def note(self, stage: Stage, seconds: float, finished: bool) -> None:
        """Record that a stage has run for `seconds` more, and whether it is finished."""
        if finished:
            self.finished.add(stage.name)
        self.ran_s[stage.name] = self.ran_s.get(stage.name, 0.0) + seconds
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"finished": sorted(self.finished), "ran_s": self.ran_s}))
        part.replace(self._path)


def begin(out: Path) -> None:
    """Copy the embedded voice, unless the folder has it already."""
    if not (out / TTS / "model.safetensors").is_file():
        shutil.copytree(EMBEDDED / TTS, out / TTS, dirs_exist_ok=True)


def run(side_by_side: Sequence[Sequence[Stage]], progress: StageProgress) -> None:
    """Run lists of stages at the same time, and record how long each has run.

    Raises:
        SystemExit: A stage failed; the others were ended.
    """
    waiting = [list(stages) for stages in side_by_side]
    running: dict[int, tuple[Stage, subprocess.Popen[bytes], float]] = {}
    try:
        while running or any(waiting):
            left = {stage.name for stages in waiting for stage in stages}
            left |= {stage.name for stage, _, _ in running.values()}
            for row, stages in enumerate(waiting):
                if row not in running and stages and stages[0].after not in left:
                    stage = stages.pop(0)
                    print("+", *stage.command, flush=True)
                    process = subprocess.Popen(stage.command)
                    running[row] = (stage, process, time.monotonic())
            time.sleep(0.2)
            for row, (stage, process, noted) in list(running.items()):
                now, status = time.monotonic(), process.poll()
                if status:
                    raise SystemExit(f"{stage.name} failed with status {status}")
                if status == 0:
                    del running[row]
                    progress.note(stage, now - noted, finished=True)
                elif now - noted > _SAVE_EVERY_S:  # the stage has saved its checkpoint since
                    progress.note(stage, now - noted, finished=False)
                    running[row] = (stage, process, now)
    finally:
        for _, process, _ in running.values():
            process.terminate()
            process.wait()


def too_large(out: Path) -> list[str]:
    """Return the weight files that are larger than allowed, sorted."""
    found = (path for path in out.rglob("*.safetensors") if path.stat().st_size > LARGEST_FILE)
    return sorted(str(path.relative_to(out)) for path in found)


def main() -> None:
    """Run the stages that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder for text and speech")
    parser.add_argument("out", type=Path, help="folder of the checkpoints; created if missing")
    parser.add_argument("--minutes", type=float, default=25, help="time for all stages together")
    parser.add_argument("--sentences", type=int, default=170_000)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    options = parser.parse_args()
    begin(options.out)
    progress = StageProgress(options.out)
    finished = set(progress.finished)
    if not (options.work / "data" / "heldout.json").is_file():  # missing on another machine
        finished -= {"text", "speech"}
    if (options.work / "text" / "train.txt").is_file():
        finished.add("text")
    gpus = min(4, torch.cuda.device_count())
    first, *rest = sequences(plan(options, progress.ran_s, finished, gpus))
    run([first], progress)
    run(rest, progress)
    if files := too_large(options.out):
        raise SystemExit(f"larger than 16 MiB: {', '.join(files)}")


if __name__ == "__main__":
    main()
