"""`izwi quantize`: write a chat model in 4 bits, calibrated on texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from izwi.errors import InvalidRequest
from izwi_api.cli.options import Offline
from izwi_api.console import messages, report_failures

# Texts of a calibration file that are used.
_MOST_TEXTS = 128


def quantize(
    model: Annotated[
        str,
        typer.Argument(help="Folder, embedded name or hub id of a Qwen3 chat model in float."),
    ],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="UTF-8 texts like those that the model will read, separated by empty lines. "
            "Without it, weights are rounded to nearest.",
        ),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits of a weight: 4.")] = 4,
    group: Annotated[int, typer.Option(min=8, help="Inputs that share a scale.")] = 128,
    offline: Offline = False,
) -> None:
    """Write a chat model in 4 bits, in AWQ's layout, with scales that suit given texts."""
    from izwi.backends.choice import open_backend
    from izwi.checkpoints.registry import find
    from izwi.runner.quantizing import quantize_checkpoint

    with report_failures():
        if bits != 4:
            raise InvalidRequest(f"--bits must be 4, got {bits}", param="bits")
        texts = [] if calibrate is None else read_texts(calibrate)
        with messages().status("quantizing"):
            backend = open_backend("cpu", "float32")
            source = find(model, offline=offline)
            errors = quantize_checkpoint(source, output, texts, group, backend)
        line = f"{output}\tAWQ, 4 bits in groups of {group}"
        if texts:
            line += (
                f"\terror of products on {len(texts)} texts: {errors.calibrated:.5f} "
                f"(to nearest: {errors.nearest:.5f})"
            )
        typer.echo(line)


def read_texts(path: Path) -> list[str]:
    """Read the texts of a calibration file. Raises InvalidRequest."""
    try:
        whole = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", param="calibrate") from error
    texts = [text.strip() for text in whole.replace("\r\n", "\n").split("\n\n")]
    texts = [text for text in texts if text][:_MOST_TEXTS]
    if not texts:
        raise InvalidRequest(f"{path} has no text", param="calibrate")
    return texts
