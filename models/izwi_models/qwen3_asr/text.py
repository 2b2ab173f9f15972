"""Languages of Qwen3-ASR and how its written answer is read. Knows no tokens.

Source: qwen_asr 0.0.6, inference/utils.py (parse_asr_output, SUPPORTED_LANGUAGES).
"""

from __future__ import annotations

import re

from izwi.errors import InvalidRequest
from izwi.inputs import Transcript

TEXT_TAG = "<asr_text>"

LANGUAGES: dict[str, str] = {
    "zh": "Chinese",
    "en": "English",
    "yue": "Cantonese",
    "ar": "Arabic",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "pt": "Portuguese",
    "id": "Indonesian",
    "it": "Italian",
    "ko": "Korean",
    "ru": "Russian",
    "th": "Thai",
    "vi": "Vietnamese",
    "ja": "Japanese",
    "tr": "Turkish",
    "hi": "Hindi",
    "ms": "Malay",
    "nl": "Dutch",
    "sv": "Swedish",
    "da": "Danish",
    "fi": "Finnish",
    "pl": "Polish",
    "cs": "Czech",
    "fil": "Filipino",
    "fa": "Persian",
    "el": "Greek",
    "ro": "Romanian",
    "hu": "Hungarian",
    "mk": "Macedonian",
}
"""Name by ISO 639 code, in the order of the reference."""

_ALIASES = {"cmn": "zh", "tl": "fil"}

# More than twenty of one character, then twenty or more of a pattern of up to twenty characters.
# The reference looks for patterns only where at least forty characters are left.
_LONG_RUN = re.compile(r"(.)\1{20,}", re.DOTALL)
_LONG_PATTERN = re.compile(r"(?=.{40})(.{1,20}?)\1{19,}", re.DOTALL)


def language_name(language: str | None, known: tuple[str, ...]) -> str | None:
    """Find the name that the prompt spells for a name or an ISO code in any case.

    Args:
        language: "English", "english", "en", "en-GB"; None or blank detects it.
        known: Names that the checkpoint supports.

    Raises:
        InvalidRequest: The checkpoint does not support it (param "language").
    """
    asked = (language or "").strip()
    if not asked:
        return None
    code = re.split(r"[-_]", asked.lower())[0]
    name = LANGUAGES.get(_ALIASES.get(code, code), _capitalised(asked))
    if name not in known:
        raise InvalidRequest(
            f"no language {language!r}; the model has: {', '.join(known)}", param="language"
        )
    return name


def collapse_repeats(text: str) -> str:
    """Write a run that a stuck decoder made once: of a character, then of a pattern."""
    return _LONG_PATTERN.sub(r"\1", _LONG_RUN.sub(r"\1", text))


def parse_answer(raw: str, forced: str | None = None) -> Transcript:
    """Read "language English<asr_text>words".

    Args:
        raw: The decoded answer.
        forced: The language that the prompt forced, so that the answer is text alone.

    Returns:
        The language, "" where it is unknown, and the text. "language None" means no speech.
    """
    raw = collapse_repeats(raw.strip())
    if not raw:
        return Transcript(language="", text="")
    if forced:
        return Transcript(language=forced, text=raw)
    head, tag, text = raw.partition(TEXT_TAG)
    if not tag:
        return Transcript(language="", text=raw)
    language = "" if "language none" in head.lower() else _named_in(head)
    return Transcript(language=language, text=text.strip())


def text_start(raw: bytes, *, is_forced: bool) -> int:
    """Count the bytes of an answer before its text: the tag, and white space."""
    answer = raw.decode(errors="surrogateescape")  # broken bytes come back as they were
    _, tag, tail = answer.partition(TEXT_TAG)
    text = (tail if tag and not is_forced else answer).lstrip()
    return len(raw) - len(text.encode(errors="surrogateescape"))


def _named_in(head: str) -> str:
    """Language of the first line "language X"."""
    for line in head.splitlines():
        word, _, name = line.strip().partition(" ")
        if word.lower() == "language" and name.strip():
            return _capitalised(name.strip())
    return ""


def _capitalised(name: str) -> str:
    return name[:1].upper() + name[1:].lower()
