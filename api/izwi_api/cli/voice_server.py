"""The voices of a running server."""

from __future__ import annotations

import asyncio
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from izwi.errors import EngineStopped, InvalidRequest
from izwi_api.cli.remote import Server, Upload
from izwi_api.voices.archive import VoiceArchive
from izwi_api.voices.files import audio_kind

_VOICES = "/v1/audio/voices"


class VoiceServer(Server):
    """A server, asked about its stored voices; raises as `Server`."""

    async def voice(self, key: str) -> dict[str, Any]:
        """Return what is known of a voice."""
        return await self.get(_path(key))

    async def stored_name(self, key: str) -> str:
        """Return the name of a stored voice. Raises InvalidRequest for a model's own speaker."""
        entry = await self.voice(key)
        if entry.get("kind") != "cloned":
            raise InvalidRequest(
                f"{key!r} is not a stored voice, but the model's own", param="voice"
            )
        return str(entry["name"])

    async def delete_voice(self, key: str) -> None:
        """Forget a voice."""
        await self._json(urllib.request.Request(self.url + _path(key), method="DELETE"))

    async def archive(self, key: str) -> VoiceArchive:
        """Return a stored voice, clip and all."""
        entry = await self.voice(key)
        if entry.get("kind") != "cloned":
            raise InvalidRequest(f"{key!r} is not a stored voice; it has no clip", param="voice")
        response = await self._open(
            urllib.request.Request(f"{self.url}{_path(str(entry['id']))}/sample")
        )
        try:
            sample = await asyncio.to_thread(response.read)
        except (HTTPException, OSError) as error:
            raise EngineStopped("the server broke off before the clip was complete") from error
        finally:
            response.close()
        return VoiceArchive(
            str(entry["name"]),
            sample,
            entry.get("ref_text"),
            entry.get("prompt"),
            entry.get("consent"),
        )

    async def keep(self, voice: VoiceArchive) -> None:
        """Make a voice of an archive there; one from a description becomes one from its clip."""
        name = "clip" + audio_kind(voice.sample)[0]
        fields = {
            "name": voice.name,
            "consent": voice.consent or (voice.prompt and "nobody's voice: from a description"),
            "ref_text": voice.text,
            "x_vector_only": "true" if voice.text is None else None,
        }
        await self.post_form(_VOICES, fields, Upload("audio_sample", name, voice.sample))


def _path(key: str) -> str:
    return f"{_VOICES}/{quote(key, safe='')}"
