"""`izwi clone`: store a voice from a clip and preview it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import BAD_INPUT, messages, report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.cli.audio_out import Saved, Speech
    from izwi_api.client import AsyncClient

_CONSENT = "Did the person who speaks in this clip agree that their voice is cloned?"
_AGREED = "the speaker agreed"  # checked before
_SENTENCE = "Hello, this is how I sound now."
# Limits the preview, because a bad clone may not find the end of the sentence.
_SENTENCE_FRAMES = 75

Clip = Annotated[Path, typer.Argument(help="Audio file with a few seconds of one speaker.")]
Name = Annotated[str, typer.Option(help="Name of the new voice.")]
Text = Annotated[str | None, typer.Option(help="What the clip says. Default: transcribe it.")]
XVectorOnly = Annotated[
    bool,
    typer.Option(
        "--x-vector-only", help="Clone only the speaker's voice, not how the clip is spoken."
    ),
]
ModelSource = Annotated[
    str | None,
    typer.Option(help="Folder, hub id or embedded name. Default: embedded, or the server's first."),
]
AsrModel = Annotated[
    str | None,
    typer.Option(help="Model that transcribes the clip. Default: embedded, or the server's first."),
]
Consent = Annotated[
    str | None,
    typer.Option(
        help="Id of a consent recording, instead of the question; a server may require one."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask: the speaker agreed.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Skip the preview.")]
Sample = Annotated[
    Path | None, typer.Option(help="Write the preview to a file instead of playing it.")
]


@dataclass(frozen=True, slots=True)
class _CloneOptions:
    """What to clone, and how.

    Attributes:
        text: What the clip says; None if it is to be transcribed or not needed.
        asr_model: The model that transcribes it.
        consent: The statement of consent to store.
        sample: File for a preview sentence.
    """

    clip: Path
    name: str
    text: str | None
    x_vector_only: bool
    model: str | None
    asr_model: str | None
    consent: str
    quiet: bool
    sample: Path | None

    @property
    def transcribes(self) -> bool:
        """Whether the clip is still to be transcribed."""
        return self.text is None and not self.x_vector_only


def clone(
    clip: Clip,
    name: Name,
    text: Text = None,
    x_vector_only: XVectorOnly = False,
    model: ModelSource = None,
    asr_model: AsrModel = None,
    consent: Consent = None,
    yes: Yes = False,
    quiet: Quiet = False,
    sample: Sample = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Clone a voice from a clip; then `izwi say --voice NAME`."""
    from izwi.errors import InvalidRequest
    from izwi.model.capability import Capability
    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.target import choose_format
    from izwi_api.client import AsyncClient, RuntimeOptions
    from izwi_api.voices.store import check_name

    with report_failures():
        check_name(name)
        if text is not None and x_vector_only:
            raise InvalidRequest("use either --text or --x-vector-only, not both")
        if sample is not None:
            choose_format(sample)
        _tell_faults(clip)
        if consent is None and not yes and not typer.confirm(_CONSENT, err=True):
            messages().print("izwi: nothing was cloned")
            raise typer.Exit(BAD_INPUT)
        agreed = consent or _AGREED
        runtime = RuntimeOptions(device, dtype, offline)
        transcribes = text is None and not x_vector_only
        serves: dict[Capability, str | None] = {Capability.SPEAK: model}
        if transcribes:
            serves[Capability.TRANSCRIBE] = asr_model
        server = running_server(
            server, api_key, local_only=runtime != RuntimeOptions(), serves=serves
        )
        models = [model or DEFAULT_MODELS[0]]
        if transcribes:
            models.append(asr_model or DEFAULT_MODELS[1])
        if not server:  # the first model of each kind that this process loads
            model = asr_model = None
        options = _CloneOptions(
            clip, name, text, x_vector_only, model, asr_model, agreed, quiet, sample
        )
        client = AsyncClient(server, api_key=api_key, models=models, runtime=runtime)
        asyncio.run(_clone(client, options))


def _tell_faults(clip: Path) -> None:
    """Report faults of the clip before asking for consent.

    Raises:
        InvalidAudio: The clip cannot be read.
    """
    from izwi_api.cli.audio_files import decode_clip
    from izwi_api.voices.clip_check import clip_faults, measure_clip
    from izwi_api.voices.store import REFERENCE_RATE

    samples = decode_clip(clip, REFERENCE_RATE)
    for fault in clip_faults(measure_clip(samples, REFERENCE_RATE)):
        messages().print(f"the clip's {fault.name}: {fault.message}", style="yellow", markup=False)


async def _clone(client: AsyncClient, options: _CloneOptions) -> None:
    async with client:
        text = await _heard(client, options) if options.transcribes else options.text
        await client.clone(
            options.name,
            options.clip,
            text,
            consent=options.consent,
            x_vector_only=options.x_vector_only,
        )
        said = f"; it says: {text}" if text else ""
        messages().print(f"voice {options.name} is ready{said}", markup=False)
        if not options.quiet:
            speech = client.stream_speech(
                _SENTENCE, model=options.model, voice=options.name, max_new_tokens=_SENTENCE_FRAMES
            )
            await _say_back(speech, options)


async def _heard(client: AsyncClient, options: _CloneOptions) -> str:
    from izwi.errors import InvalidAudio

    heard = await client.transcribe(options.clip, model=options.asr_model)
    if not heard.text:
        raise InvalidAudio("no speech was recognized in the clip; give its text with --text")
    return heard.text


async def _say_back(speech: Speech, options: _CloneOptions) -> None:
    """Speak a sentence with the new voice: play it, write it to a file, or only make it."""
    saved = await _deliver(speech, options.sample)
    if saved is None:
        why = "No audio player found" if _is_heard() else "stdout is not a terminal"
        messages().print(f"{why}; preview skipped (--sample FILE writes it).")
        return
    messages().print(
        f"{saved.place}: {options.name} says {_SENTENCE!r} in {saved.seconds:.1f} s", markup=False
    )


async def _deliver(speech: Speech, sample: Path | None) -> Saved | None:
    """Write or play the sentence; None if it was only made."""
    import tempfile

    from izwi_api.cli.audio_out import find_player, play, save
    from izwi_api.cli.target import choose_format

    if sample is not None:
        return await save(speech, sample, choose_format(sample))
    player = find_player() if _is_heard() else None
    if player is not None:
        return await play(speech, player)
    # Made in any case, so that a voice that cannot speak is noticed now.
    with tempfile.TemporaryDirectory() as folder:
        await save(speech, Path(folder) / "sample.wav", "wav")
    return None


def _is_heard() -> bool:
    """Whether stdin is a terminal."""
    return sys.stdout.isatty()
