"""Read a subset of SSML: a text in, texts with their voices and pauses out. Pure.

    <speak>One <break time="1s"/> <voice name="a">two</voice></speak>
        ─▶  VoicedText("One"), Pause(1.0), VoicedText("two", "a")

What is not in the subset is refused with its line and column (docs/ssml.md). There is no document
type, so no entities but XML's five, and nothing outside the text is ever read.

Source: Speech Synthesis Markup Language 1.1, https://www.w3.org/TR/speech-synthesis11/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from izwi.errors import InvalidRequest
from izwi_api.services.speech.spoken_text import MAX_PAUSE_S, Pause

MAX_DEPTH = 16  # elements that are open at a time
_SPACE = re.compile(r"[ \t\r\n]+")
_TIME = re.compile(r"\+?([0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})(ms|s)")
_CARDINAL = re.compile(r"-?(?:[0-9]{1,15}|[0-9]{1,3}(?:,[0-9]{3}){1,4})")
_ORDINAL = re.compile(r"[0-9]{1,15}")
_DIGITS = re.compile(r"[0-9](?:[ -]?[0-9])*")
_TELEPHONE = re.compile(r"\+?[0-9 ().-]*[0-9][0-9 ().-]*")
# SSML leaves the lengths open; these are common ones.
_STRENGTHS_S = {
    "none": 0.0,
    "x-weak": 0.25,
    "weak": 0.5,
    "medium": 0.75,
    "strong": 1.0,
    "x-strong": 1.25,
}
# Likewise for rates, relative to the voice's own.
_RATES = {
    "x-slow": 0.5,
    "slow": 0.75,
    "medium": 1.0,
    "default": 1.0,
    "fast": 1.25,
    "x-fast": 1.5,
}
_PERCENT = re.compile(r"([+-]?)([0-9]{1,4}(?:\.[0-9]{1,4})?)%")
_LEAST_RATE, _MOST_RATE = 0.5, 2.0  # beyond them, stretched speech is hard to understand
# What changes nothing, as other programs write it.
_UNCHANGED = re.compile(r"default|medium|[+-]?0(?:\.0+)?(?:%|st|Hz|dB)")
_LEVELS = ("strong", "moderate", "none", "reduced")
_READINGS = ("characters", "cardinal", "ordinal", "digits", "telephone")
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "speak": ("version", "xmlns", "xml:lang"),
    "p": (),
    "s": (),
    "voice": ("name",),
    "emphasis": ("level",),
    "prosody": ("rate", "pitch", "volume"),
    "break": ("time", "strength"),
    "sub": ("alias",),
    "say-as": ("interpret-as",),
}
_REQUIRED = {"voice": "name", "sub": "alias", "say-as": "interpret-as"}
_PHRASE = ("voice", "prosody", "emphasis", "break", "sub", "say-as")
_CHILDREN: Mapping[str, tuple[str, ...]] = {
    "speak": ("p", "s", *_PHRASE),
    "p": ("s", *_PHRASE),
    "s": _PHRASE,
    "voice": ("p", "s", *_PHRASE),
    "emphasis": _PHRASE,
    "prosody": ("p", "s", *_PHRASE),
    "break": (),
    "sub": (),
    "say-as": (),
}
_ENDS_TEXT = ("speak", "p", "s", "voice")


@dataclass(frozen=True, slots=True)
class VoicedText:
    """A text that is spoken as a text of its own.

    Attributes:
        text: Not empty; runs of white space are one space.
        voice: Name of its voice; None is the request's.
        rate: How fast it is spoken, relative to the voice's own rate.
    """

    text: str
    voice: str | None = None
    rate: float = 1.0


@dataclass(slots=True)
class _Element:
    """An element that is open."""

    name: str
    attributes: Mapping[str, str]
    place: str
    voice: str | None
    rate: float
    content: list[str] = field(default_factory=list)  # of one that replaces its text


def parse_ssml(text: str) -> list[VoicedText | Pause]:
    """Return the texts and pauses of a document, in order; none of the pauses is empty.

    Raises:
        InvalidRequest: It is not well formed or not in the subset; the message has the place.
    """
    return _Reader().read(text)


class _Reader:
    def __init__(self) -> None:
        self._parts: list[VoicedText | Pause] = []
        self._text: list[str] = []  # since the last part
        self._open: list[_Element] = []
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        parser.ProcessingInstructionHandler = self._instruction

    def read(self, text: str) -> list[VoicedText | Pause]:
        try:
            self._parser.Parse(text.lstrip(" \t\r\n"), True)
        except expat.ExpatError as error:
            place = f"line {error.lineno}, column {error.offset + 1}"
            raise _refused(place, expat.ErrorString(error.code)) from error
        except UnicodeEncodeError as error:
            raise _refused("the text", "a character is half of a surrogate pair") from error
        return self._parts

    def _place(self) -> str:
        parser = self._parser
        return f"line {parser.CurrentLineNumber}, column {parser.CurrentColumnNumber + 1}"

    def _doctype(self, *_: object) -> None:
        raise _refused(self._place(), "a document type is not allowed")

    def _instruction(self, *_: object) -> None:
        raise _refused(self._place(), "a processing instruction is not allowed")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        place = self._place()
        parent = self._open[-1] if self._open else None
        _check(name, attributes, parent.name if parent else None, place)
        if len(self._open) == MAX_DEPTH:
            raise _refused(place, f"at most {MAX_DEPTH} elements may be open at a time")
        voice = attributes["name"] if name == "voice" else parent.voice if parent else None
        rate = parent.rate if parent else 1.0
        if name == "prosody":
            if any(element.name == "prosody" for element in self._open):
                raise _refused(place, "<prosody> is not allowed inside another <prosody>")
            rate = _rate(attributes, place)
        if name in _ENDS_TEXT or (parent and rate != parent.rate):
            self._end_text()
        self._open.append(_Element(name, attributes, place, voice, rate))

    def _end(self, name: str) -> None:
        if name in _ENDS_TEXT or self._changes_rate():
            self._end_text()
        element = self._open.pop()
        if name == "sub":
            self._text.append(element.attributes["alias"])
        elif name == "say-as":
            self._text.append(_said(element))
        elif name == "break":
            self._pause(_break_s(element))

    def _changes_rate(self) -> bool:
        """Return whether the innermost element is spoken at another rate than what is around it."""
        return len(self._open) > 1 and self._open[-1].rate != self._open[-2].rate

    def _pause(self, seconds: float) -> None:
        if seconds == 0:  # the text goes on
            self._text.append(" ")
            return
        self._end_text()
        self._parts.append(Pause(seconds))

    def _characters(self, text: str) -> None:
        element = self._open[-1]
        if element.name in ("sub", "say-as"):
            element.content.append(text)
        elif element.name != "break":
            self._text.append(text)
        elif text.strip():
            raise _refused(element.place, "<break> has no text")

    def _end_text(self) -> None:
        text = _SPACE.sub(" ", "".join(self._text)).strip(" ")
        self._text.clear()
        if text:
            element = self._open[-1]
            self._parts.append(VoicedText(text, element.voice, element.rate))


def _check(name: str, attributes: Mapping[str, str], parent: str | None, place: str) -> None:
    """Check an element and where it is, but not the values that have a meaning."""
    if name == "phoneme":
        why = 'no model here reads phonemes; write it as it sounds: <sub alias="...">'
        raise _refused(place, f"<phoneme> is not supported: {why}")
    if name not in _ATTRIBUTES:
        raise _refused(place, f"<{name[:64]}> is not supported; these are: {', '.join(_CHILDREN)}")
    if name not in (("speak",) if parent is None else _CHILDREN[parent]):
        raise _refused(place, f"<{name}> is not allowed {f'in <{parent}>' if parent else 'here'}")
    for attribute in attributes:
        if attribute not in _ATTRIBUTES[name]:
            raise _refused(place, f"<{name}> has no attribute {attribute[:64]!r} here")
    required = _REQUIRED.get(name)
    if required is not None and not attributes.get(required, "").strip():
        raise _refused(place, f"<{name}> needs the attribute {required!r}")
    if name == "emphasis":
        _one_of(attributes.get("level", "moderate"), "level", _LEVELS, place)
    if name == "say-as":
        _one_of(attributes["interpret-as"], "interpret-as", _READINGS, place)


def _one_of(value: str, attribute: str, values: tuple[str, ...], place: str) -> None:
    if value not in values:
        raise _refused(place, f"{attribute} is one of {', '.join(values)}, not {value[:64]!r}")


def _rate(attributes: Mapping[str, str], place: str) -> float:
    """Return the rate of <prosody>; a pitch or volume other than the voice's own is refused."""
    for name in ("pitch", "volume"):
        if not _UNCHANGED.fullmatch(attributes.get(name, "default").strip()):
            raise _refused(place, f"no model here changes its {name}; leave the attribute out")
    written = attributes.get("rate", "default").strip()
    if written in _RATES:
        return _RATES[written]
    match = _PERCENT.fullmatch(written)
    if match is None:
        names = ", ".join(_RATES)
        raise _refused(place, f"rate is {names}, or like 120% or +20%, not {written[:64]!r}")
    share = float(match[2]) / 100
    rate = {"+": 1 + share, "-": 1 - share, "": share}[match[1]]
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise _refused(place, f"a rate is from {_LEAST_RATE:.0%} to {_MOST_RATE:.0%}")
    return rate


def _break_s(element: _Element) -> float:
    """Return the length of a break in seconds; its time goes before its strength."""
    strength = element.attributes.get("strength", "medium")
    _one_of(strength, "strength", tuple(_STRENGTHS_S), element.place)
    time = element.attributes.get("time")
    if time is None:
        return _STRENGTHS_S[strength]
    match = _TIME.fullmatch(time.strip())
    if match is None:
        raise _refused(element.place, f"time is like 500ms or 1.5s, not {time[:64]!r}")
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
    if seconds > MAX_PAUSE_S:
        raise _refused(element.place, f"a break lasts at most {MAX_PAUSE_S:g} s")
    return seconds


def _said(element: _Element) -> str:
    """Return what is spoken for the content of <say-as>."""
    content = _SPACE.sub(" ", "".join(element.content)).strip(" ")
    match element.attributes["interpret-as"]:
        case "characters" if any(map(str.isalnum, content)):
            return _groups(content.upper())
        case "cardinal" if _CARDINAL.fullmatch(content):
            return f"{int(content.replace(',', '')):,}"
        case "ordinal" if _ORDINAL.fullmatch(content):
            return _ordinal(int(content))
        case "digits" if _DIGITS.fullmatch(content):
            return " ".join(filter(str.isdigit, content))
        case "telephone" if _TELEPHONE.fullmatch(content):
            return ("plus " if content[0] == "+" else "") + _groups(content)
        case reading:
            raise _refused(element.place, f"{content[:64]!r} cannot be read as {reading}")


def _groups(text: str) -> str:
    """Return each letter and digit as a word of its own, with a comma for anything between."""
    runs = re.findall(r"[^\W_]+", text)
    return ", ".join(" ".join(run) for run in runs)


def _ordinal(number: int) -> str:
    teens = 10 < number % 100 < 20
    return f"{number:,}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _refused(place: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"SSML, {place}: {why}", param="input")
