"""What a Wyoming server can do, as it describes itself."""

from __future__ import annotations

from typing import Any

from izwi import __version__
from izwi.errors import ModelNotFound
from izwi_api.client import AsyncClient
from izwi_api.client.streams import tasks_of

_ATTRIBUTION = {"name": "izwi", "url": ""}
# Home Assistant chooses by code; models list names.
_CODES = {
    "arabic": "ar", "cantonese": "yue", "chinese": "zh", "czech": "cs", "danish": "da",
    "dutch": "nl", "english": "en", "filipino": "fil", "finnish": "fi", "french": "fr",
    "german": "de", "greek": "el", "hindi": "hi", "hungarian": "hu", "indonesian": "id",
    "italian": "it", "japanese": "ja", "korean": "ko", "macedonian": "mk", "malay": "ms",
    "persian": "fa", "polish": "pl", "portuguese": "pt", "romanian": "ro", "russian": "ru",
    "spanish": "es", "swedish": "sv", "thai": "th", "turkish": "tr", "vietnamese": "vi",
}  # fmt: skip


async def describe(client: AsyncClient) -> dict[str, Any]:
    """Return the data of an `info` event: the models that transcribe, and the voices.

    Raises:
        ModelNotFound: No model speaks or transcribes.
    """
    models = await client.models()
    hearing = [model for model in models if "transcription" in tasks_of(model)]
    speaking = [model for model in models if "speech" in tasks_of(model)]
    if not hearing and not speaking:
        raise ModelNotFound("no model is served that speaks or transcribes")
    asr = [
        {
            **_artifact("izwi"),
            "models": [_artifact(model["id"]) | _languages(model) for model in hearing],
            "supports_transcript_streaming": True,
        }
    ]
    tts = [
        {
            **_artifact("izwi"),
            "voices": await _voices(client, speaking) if speaking else [],
            "supports_synthesize_streaming": True,
        }
    ]
    others: dict[str, Any] = {kind: [] for kind in ("handle", "intent", "wake", "mic", "snd")}
    return {"asr": asr if hearing else [], "tts": tts if speaking else [], **others}


async def _voices(client: AsyncClient, models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the speakers of the models, and stored voices, in the languages of the first model."""
    by_name = {model["id"]: model for model in models}
    voices = [voice for voice in await client.voices() if voice["kind"] in ("speaker", "cloned")]
    return [
        _artifact(voice["name"]) | _languages(by_name.get(voice.get("model"), models[0]))
        for voice in voices
    ]


def _artifact(name: str) -> dict[str, Any]:
    about = {"attribution": _ATTRIBUTION, "installed": True, "version": __version__}
    return {"name": name, "description": name, **about}


def _languages(model: dict[str, Any]) -> dict[str, list[str]]:
    names = (str(name).lower() for name in model.get("languages", ()))
    return {"languages": [_CODES[name] for name in names if name in _CODES] or ["en"]}
