"""The output of a speech, checked before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from izwi.audio.encode import FORMATS
from izwi.errors import InvalidRequest
from izwi_api.cli.audio_out import (
    DEFAULT_FILE,
    STDOUT,
    at_terminal,
    find_player,
    is_piped,
    is_redirected,
)
from izwi_api.client.audio import format_of
from izwi_api.console import messages


@dataclass(frozen=True, slots=True)
class Target:
    """The output of a speech.

    Attributes:
        player: Path of the player, or None.
        out: The file, or STDOUT; not used with a player.
        audio_format: One of FORMATS.
        replaces: The file exists, and the user has named it.
    """

    player: str | None
    out: Path
    audio_format: str
    replaces: bool = False


def choose_target(out: Path | None, audio_format: str | None, *, piped_text: bool) -> Target:
    """Choose a player, stdout or a file.

    Args:
        out: The value of `--out`, or None.
        audio_format: The value of `--format`, or None for that of the file's suffix.
        piped_text: The text comes from stdin; the audio then goes to stdout if that is a pipe, too.
            If stdout is a file, it always does.

    Raises:
        InvalidRequest: The output is not possible, or would replace a file that was not named.
    """
    if audio_format is not None and audio_format not in FORMATS:
        raise InvalidRequest(
            f"--format {audio_format}: must be one of {', '.join(FORMATS)}", param="format"
        )
    if out is None and (is_redirected() or (piped_text and is_piped())):
        out = STDOUT  # `izwi say hi > hi.wav`, `echo hi | izwi say - | aplay`
    if out is not None:
        return _named_target(out, audio_format)
    player = find_player() if at_terminal() and audio_format is None else None
    if player is not None:
        return Target(player, DEFAULT_FILE, "wav")
    path = DEFAULT_FILE.with_suffix(f".{audio_format or 'wav'}")
    if path.exists():
        raise InvalidRequest(
            f"{path} exists already; name a file with --out (--out {path} replaces it)", param="out"
        )
    if at_terminal() and audio_format is None:
        messages().print(
            f"No audio player found (aplay or afplay); writing {path} instead.", markup=False
        )
    return Target(None, path, audio_format or "wav")


def choose_format(path: Path) -> str:
    """Return the audio format of a file's suffix; WAV for stdout.

    Raises:
        InvalidRequest: The suffix has no audio format.
    """
    return "wav" if path == STDOUT else format_of(path)


def check_file(path: Path, option: str) -> None:
    """Check that a file can be created or replaced.

    Raises:
        InvalidRequest: Its folder does not exist, or it is a folder.
    """
    if path.is_dir():
        raise InvalidRequest(f"{option} {path}: this is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InvalidRequest(f"{option} {path}: the folder {path.parent} does not exist")


def check_stdout(option: str) -> None:
    """Raise InvalidRequest if bytes on stdout would go to a terminal."""
    if at_terminal():
        raise InvalidRequest(
            f"{option} -: stdout is a terminal; send it to a file or a program, as in "
            f"`{option} - > FILE`",
            param="out",
        )


def _named_target(out: Path, audio_format: str | None) -> Target:
    if out == STDOUT:
        check_stdout("--out")
        return Target(None, out, audio_format or "wav")
    if audio_format is None:
        audio_format = format_of(out)
    elif is_of_other_format(out, audio_format):
        raise InvalidRequest(
            f"--format {audio_format} contradicts --out {out}: remove one, or use the "
            f"suffix .{audio_format}",
            param="format",
        )
    check_file(out, "--out")
    return Target(None, out, audio_format, replaces=out.exists())


def is_of_other_format(path: Path, audio_format: str) -> bool:
    """Whether a file's suffix stands for another audio format."""
    try:
        return format_of(path) != audio_format
    except InvalidRequest:  # the suffix has no audio format
        return False
