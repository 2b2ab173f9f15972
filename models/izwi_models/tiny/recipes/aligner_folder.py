"""Complete the folder of an aligner: index, configuration and tokenizer for its trained tensors.

The trained tensors are in own.safetensors. An index refers to the transcriber's file for all
others, by relative path, so both folders must be moved together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

from safetensors import safe_open

from izwi.checkpoints.folder import parse_config, read_json
from izwi.errors import CheckpointError
from izwi_models.qwen3_aligner.config import AlignerConfig, tensor_shapes
from izwi_models.tiny.recipes.settings import ALIGNER, TIMESTAMP

OWN, WHOLE = "own.safetensors", "model.safetensors"
_SAME = ("vocab.json", "merges.txt", "preprocessor_config.json")


def complete(out: Path, asr: Path) -> None:
    """Write index, configuration and tokenizer of an aligner whose weights are in `out`.

    Args:
        out: Folder with own.safetensors, or with model.safetensors, which needs no index.
        asr: Folder of the transcriber, with the remaining tensors and the tokenizer.

    Raises:
        CheckpointError: own.safetensors has an unexpected tensor.
    """
    if not (out / WHOLE).is_file():
        names = tensor_shapes(parse_config(AlignerConfig, ALIGNER, "settings.ALIGNER"))
        with safe_open(out / OWN, framework="np") as file:
            own = set(file.keys())
        if strange := sorted(own - set(names)):
            raise CheckpointError(f"{out / OWN}: unexpected tensor {strange[0]!r}")
        theirs = os.path.relpath(asr / WHOLE, out)
        files = {name: OWN if name in own else theirs for name in sorted(names)}
        _write(out / f"{WHOLE}.index.json", {"weight_map": files})
    _write(out / "config.json", ALIGNER)
    for name in _SAME:
        shutil.copyfile(asr / name, out / name)
    values = read_json(asr / "tokenizer_config.json")
    values["added_tokens_decoder"][str(TIMESTAMP)] = {"content": "<timestamp>", "special": True}
    _write(out / "tokenizer_config.json", values)


def _write(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Make a checkpoint folder for an own.safetensors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("own", type=Path, help="own.safetensors from the aligner recipe")
    parser.add_argument("asr", type=Path, help="folder of izwi-tiny-asr")
    parser.add_argument("out", type=Path, help="checkpoint folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.own.resolve() != (args.out / OWN).resolve():
        shutil.copyfile(args.own, args.out / OWN)
    complete(args.out, args.asr)


if __name__ == "__main__":
    main()
