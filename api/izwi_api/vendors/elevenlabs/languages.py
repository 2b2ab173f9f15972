"""Codes of languages: ElevenLabs writes those of ISO 639-3, models here those of ISO 639-1."""

from __future__ import annotations

_LONG = {
    "ar": "ara", "cs": "ces", "da": "dan", "de": "deu", "el": "ell", "en": "eng", "es": "spa",
    "fa": "fas", "fi": "fin", "fil": "fil", "fr": "fra", "hi": "hin", "hu": "hun", "id": "ind",
    "it": "ita", "ja": "jpn", "ko": "kor", "mk": "mkd", "ms": "msa", "nl": "nld", "pl": "pol",
    "pt": "por", "ro": "ron", "ru": "rus", "sv": "swe", "th": "tha", "tr": "tur", "vi": "vie",
    "yue": "yue", "zh": "zho",
}  # fmt: skip
_SHORT = {long: short for short, long in _LONG.items()}


def long_code(code: str) -> str:
    """Return the three-letter code of a language; another code as it is."""
    return _LONG.get(code, code)


def short_code(code: str | None) -> str | None:
    """Return the two-letter code of a language, for a code of either length."""
    return code if code is None else _SHORT.get(code.lower(), code)
