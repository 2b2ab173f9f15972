"""The tools: say, transcribe, clone, list voices. Independent of the protocol's SDK.

An assistant names files, and what it reads may have told it which. So files are those of one
folder, and nothing outside it is read or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from izwi.errors import InvalidRequest
from izwi_api.client import AsyncClient, Audio
from izwi_api.client.audio import format_of


@dataclass(frozen=True, slots=True)
class SpeechTools:
    """The tools of one server.

    The docstrings are what an assistant reads of each tool.

    Attributes:
        client: The server or the models that do the work, opened.
        folder: The folder of all files.
    """

    client: AsyncClient
    folder: Path

    async def say(self, text: str, file: str, voice: str | None = None) -> str:
        """Speak a text and write the audio to a file in the speech folder.

        Args:
            text: What to say.
            file: Name of the new file, such as "reply.mp3"; wav, mp3, opus, flac and aac work.
            voice: A name from list_voices; left out, the first voice speaks.

        Returns:
            Where the file is, and how long it is.
        """
        path = self._path(file)
        format_of(path)  # refuse an unknown suffix before the work
        if path.exists():
            raise InvalidRequest(f"{file} exists already; choose another name")
        audio = await self.client.say(text, voice=voice)
        path.parent.mkdir(parents=True, exist_ok=True)
        audio.save(path)
        return f"{path} ({audio.duration_s:.1f} s)"

    async def transcribe(self, file: str, language: str | None = None) -> str:
        """Write down what is said in an audio file of the speech folder.

        Args:
            file: Name of the file; wav, mp3, m4a, ogg, flac, webm and others work.
            language: The spoken language, such as "en"; left out, it is detected.

        Returns:
            The transcript.
        """
        transcript = await self.client.transcribe(self._existing(file), language=language)
        return transcript.text

    async def clone(self, name: str, file: str, consent: str, text: str | None = None) -> str:
        """Make a voice from a clip of someone who has agreed to it.

        Ask the user for the speaker's consent before; never assume it.

        Args:
            name: Name of the new voice.
            file: Name of the clip in the speech folder: a few seconds of one speaker.
            consent: Who agreed, and how the user knows; or the id of a consent recording.
            text: What the clip says; left out, it is transcribed.

        Returns:
            The name to use as `voice`.
        """
        clip = Audio.read(self._existing(file))
        voice = await self.client.clone(name, clip, text, consent=consent)
        return f"the voice {voice['name']} is ready"

    async def list_voices(self) -> list[str]:
        """List the names of all voices that `say` can use."""
        voices = await self.client.voices()
        return [str(voice["name"]) for voice in voices]

    def _existing(self, file: str) -> Path:
        path = self._path(file)
        if not path.is_file():
            raise InvalidRequest(f"there is no file {file!r} in {self.folder}")
        return path

    def _path(self, file: str) -> Path:
        """Return the path of a file. Raises InvalidRequest if it is not in the folder."""
        folder = self.folder.resolve()
        path = (folder / file).resolve()  # a link may lead elsewhere
        if folder not in path.parents:
            raise InvalidRequest(f"{file!r} is not in the speech folder, {self.folder}")
        return path
