"""Phonemes of English text for Kokoro, from espeak-ng's library.

Kokoro was trained on the phonemes of misaki, which writes diphthongs and affricates as one letter.
"""

from __future__ import annotations

import ctypes
import os
import re

_RETRIEVAL, _NO_EVENTS = 2, 0x8000
_UTF8 = 1
_IPA, _IPA_TIED = 0x02, 0x02 | 0x80 | ord("^") << 8
# espeak-ng's names, with a tie inside those of several letters, and misaki's.
_AMERICAN = (
    ("ʔˌn̩", "tᵊn"), ("ʔn̩", "tᵊn"), ("ʔn", "tᵊn"), ("ʔ", "t"),
    ("a^ɪ", "I"), ("a^ʊ", "W"), ("d^ʒ", "ʤ"), ("e^ɪ", "A"), ("t^ʃ", "ʧ"), ("ɔ^ɪ", "Y"),
    ("o^ʊ", "O"), ("ə^l", "ᵊl"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɚ", "əɹ"), ("ɪ^ə", "iə"),
    ("ɪə", "iə"),
    ("e", "A"), ("r", "ɹ"), ("x", "k"), ("ç", "k"), ("ɐ", "ə"), ("ɬ", "l"), ("o", "ɔ"),
    ("ɾ", "T"), ("ː", ""), ("^", ""), ("̃", ""), ("̩", ""), ("-", ""), ("'", ""),
)  # fmt: skip
_BRITISH = (
    ("ʔˌn̩", "tᵊn"), ("ʔn̩", "tᵊn"), ("ʔn", "tᵊn"), ("ʔ", "t"),
    ("a^ɪ", "I"), ("a^ʊ", "W"), ("d^ʒ", "ʤ"), ("e^ɪ", "A"), ("t^ʃ", "ʧ"), ("ɔ^ɪ", "Y"),
    ("ə^ʊ", "Q"), ("ə^l", "ᵊl"), ("e^ə", "ɛː"), ("i^ə", "ɪə"), ("ɪ^ə", "ɪə"),
    ("r", "ɹ"), ("x", "k"), ("ç", "k"), ("ɐ", "ə"), ("ɬ", "l"), ("o", "ɔ"),
    ("ɾ", "t"), ("^", ""), ("̃", ""), ("̩", ""), ("-", ""), ("'", ""),
)  # fmt: skip
_MAPS = {"en-us": _AMERICAN, "en": _BRITISH}
_CLAUSES = re.compile(r"([,.?!;:]+)\s*")


class Phonemizer:
    """espeak-ng, one a process.

    ESPEAK_LIBRARY and ESPEAK_DATA name the shared library and the folder that holds espeak-ng-data
    where they are not installed.
    """

    def __init__(self, accent: str = "en-us"):
        """Start it.

        Args:
            accent: "en-us", or "en", which is British; the name "en-gb" fails in 1.51.

        Raises:
            RuntimeError: espeak-ng does not start, or does not have the voice.
        """
        self._library = ctypes.CDLL(os.environ.get("ESPEAK_LIBRARY", "libespeak-ng.so.1"))
        data = os.environ.get("ESPEAK_DATA")
        rate = self._library.espeak_Initialize(
            _RETRIEVAL, 0, data.encode() if data else None, _NO_EVENTS
        )
        if rate <= 0 or self._library.espeak_SetVoiceByName(accent.encode()):
            raise RuntimeError(f"espeak-ng did not start with {accent}")
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._map = _MAPS[accent]

    def read(self, text: str) -> str:
        """Return misaki's phonemes of a text, with its punctuation."""
        pieces = _CLAUSES.split(text)
        made = ""
        for clause, sign in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            if clause.strip():
                made += self._clause(clause)
            made += sign[:1] + " " if sign else ""
        return made.strip()

    def read_ipa(self, text: str) -> str:
        """Return espeak-ng's own phonemes of a text, with its punctuation."""
        pieces = _CLAUSES.split(text)
        made = ""
        for clause, sign in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            made += self._said(clause, _IPA) if clause.strip() else ""
            made += sign[:1] + " " if sign else ""
        return made.strip()

    def _said(self, clause: str, kind: int) -> str:
        text = ctypes.c_char_p(clause.encode())
        said = []
        while text.value:
            name = self._library.espeak_TextToPhonemes(ctypes.byref(text), _UTF8, kind)
            said.append(name.decode())
        return " ".join(said).replace("_", "")

    def _clause(self, clause: str) -> str:
        phonemes = self._said(clause, _IPA_TIED)
        for theirs, ours in self._map:
            phonemes = phonemes.replace(theirs, ours)
        return re.sub(r"\s+", " ", phonemes.replace("ɹɹ", "ɹ")).strip()
