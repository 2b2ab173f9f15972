"""Languages of Qwen3-ASR, and parsing of its decoded answer. Knows no tokens.

Source: qwen_asr 0.0.6, inference/utils.py (parse_asr_output, SUPPORTED_LANGUAGES).
"""

from __future__ import annotations

import re

from izwi.errors import InvalidRequest
from izwi.inputs.speech import Transcript

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

# More than twenty repetitions of a character; twenty or more of a pattern of up to 20 characters.
# Like the reference, look for patterns only if at least forty characters follow.
_LONG_RUN = re.compile(r"(.)\1{20,}", re.DOTALL)
_LONG_PATTERN = re.compile(r"(?=.{40})(.{1,20}?)\1{19,}", re.DOTALL)


def language_name(language: str | None, known: tuple[str, ...]) -> str | None:
    """Return the language's name as the prompt spells it, for a name or ISO code in any case.

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
    """Collapse repetitions from a stuck decoder: of a character, then of a pattern."""
    return _LONG_PATTERN.sub(r"\1", _LONG_RUN.sub(r"\1", text))


def parse_answer(raw: str, forced: str | None = None) -> Transcript:
    """Parse an answer like "language English<asr_text>words".

    Args:
        raw: The decoded answer.
        forced: The language that the prompt forced; the answer is then only text.

    Returns:
        The language, "" if unknown, and the text. "language None" means no speech.
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
    """Return the number of bytes before the text of an answer: language, tag and white space."""
    answer = raw.decode(errors="surrogateescape")  # keeps broken bytes
    _, tag, tail = answer.partition(TEXT_TAG)
    text = (tail if tag and not is_forced else answer).lstrip()
    return len(raw) - len(text.encode(errors="surrogateescape"))


def _named_in(head: str) -> str:
    """Return the language of the first line "language X"; "" if there is none."""
    for line in head.splitlines():
        word, _, name = line.strip().partition(" ")
        if word.lower() == "language" and name.strip():
            return _capitalised(name.strip())
    return ""


def _capitalised(name: str) -> str:
    return name[:1].upper() + name[1:].lower()
