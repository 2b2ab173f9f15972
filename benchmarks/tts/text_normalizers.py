"""Compare text normalizers: how many of the test table's cases each reads, and processor time.

    python -m benchmarks.tts.text_normalizers [--only izwi,normt2s] [--json results.json]

Prints JSON. Libraries that are not installed are left out; ADR 29 lists their versions. A reading
counts if its words are those of one of the case's readings. Differences that a listener would not
call a mistake do not count: punctuation, case, hyphens, "and", "the", plurals, British spelling,
"oh" for "zero", "AM" for "a m", and "the third of May" for "May third".
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

TABLES = Path(__file__).parents[2] / "tests" / "models"
PASSAGE_CHARS = 4000
_PLAIN_SENTENCE = "The ferry leaves the old harbour early and reaches the island before noon. "
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\([tnr\\])")
_PLAIN = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
_DATE = re.compile(r"\b(?:the )?([a-z]+(?: [a-z]+)?(?:st|nd|rd|th)) of ([a-z]+)\b")
_SPELLINGS = {"metre": "meter", "litre": "liter", "oh": "zero", "o": "zero", "tonne": "ton"}


class Case(NamedTuple):
    """A line of the table: what is written, and all readings that are right, the best first."""

    kind: str
    source: str
    written: str
    readings: list[str]


def cases() -> Iterator[Case]:
    """Read `readings.tsv`, whose control characters are escaped."""
    lines = (TABLES / "readings.tsv").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not line.startswith("#"):
            kind, source, written, readings = line.split("\t")
            yield Case(kind, source, unescape(written), readings.split(" | "))


def unescape(text: str) -> str:
    """Return a text of the table with its control characters."""
    return _ESCAPE.sub(lambda m: _PLAIN[m[3]] if m[3] else chr(int(m[1] or m[2], 16)), text)


def key(text: str) -> str:
    """Return the words of a reading without the differences that do not count."""
    text = _DATE.sub(r"\2 \1", text.lower().replace("-", " "))
    words = re.sub(r"[^\w\s']", " ", text).replace("'", "").split()
    words = [word for word in words if word not in ("and", "the")]
    words = [word[:-1] if len(word) > 3 and word[-1] == "s" else word for word in words]
    joined = " ".join(_SPELLINGS.get(word, word) for word in words)
    return re.sub(r"(?<=\b\w) (?=\w\b)", "", joined)


def _call(module: str, name: str, *args: Any) -> Callable[[], Callable[[str], str]]:
    return lambda: lambda text: str(getattr(importlib.import_module(module), name)(text, *args))


def _of_class(
    module: str, name: str, method: str, **settings: Any
) -> Callable[[], Callable[[str], str]]:
    return lambda: getattr(getattr(importlib.import_module(module), name)(**settings), method)


def _spokenform() -> Callable[[str], str]:
    module = importlib.import_module("spokenform")
    return lambda text: str(module.prepare(text, language="en").text)


def _gruut() -> Callable[[str], str]:
    module = importlib.import_module("gruut")
    return lambda text: " ".join(
        sentence.text_spoken
        for sentence in module.sentences(text, lang="en-us", pos=False, phonemes=False)
    )


NORMALIZERS: dict[str, Callable[[], Callable[[str], str]]] = {
    "izwi": _call("izwi_models.qwen3_tts.pieces", "spell_out"),
    "normt2s": _call("normt2s", "normalize"),
    "kitten-text-processing": _of_class(
        "kitten_text_processing", "Normalizer", "normalize", lang="en"
    ),
    "wetext": _of_class("wetext", "Normalizer", "normalize", lang="en", operator="tn"),
    "damga": _of_class("damga", "Normalizer", "normalize", mode="tn", lang="en"),
    "spokenform": _spokenform,
    "gruut": _gruut,
    "voxnorm": _call("voxnorm", "normalize", "en"),
    "utterwise": _call("utterwise", "normalize"),
}


def measure(read: Callable[[str], str], table: list[Case]) -> dict[str, Any]:
    """Return the shares of right readings and the processor time of a normalizer."""
    right: Counter[str] = Counter()
    failed = 0
    for case in table:
        try:
            got = key(read(case.written))
        except Exception:  # a library's own fault is a wrong reading
            failed += 1
            continue
        is_right = any(got == key(reading) for reading in case.readings)
        right[case.kind] += is_right
        right[f"from {case.source}"] += is_right
        right["all"] += is_right
    total = Counter[str]()
    for case in table:
        total.update([case.kind, f"from {case.source}", "all"])
    return {
        "right": {name: f"{right[name]}/{total[name]}" for name in total},
        "failed": failed,
        "cpu_ms_per_4000_chars": {
            name: round(_cpu_ms(read, text), 2) for name, text in _passages(table).items()
        },
    }


def _passages(table: list[Case]) -> dict[str, str]:
    """Return plain sentences, cases with plain sentences between them, and cases alone."""
    written = [case.written for case in table if case.written.isprintable()]
    texts = {
        "plain": _PLAIN_SENTENCE * 60,
        "mixed": _PLAIN_SENTENCE.join(f"{text}. " for text in written[::7]),
        "cases": ". ".join(written[::3]),
    }
    return {name: text[:PASSAGE_CHARS] for name, text in texts.items()}


def _cpu_ms(read: Callable[[str], str], text: str) -> float:
    """Return the least processor time of three, sentence by sentence."""
    times = []
    for _ in range(3):
        begun = time.process_time()
        for line in text.split(". "):
            with contextlib.suppress(Exception):  # counted in `failed`
                read(line)
        times.append(time.process_time() - begun)
    return min(times) * 1000


def main() -> None:
    """Print the figures of all normalizers that are installed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    table, figures = list(cases()), {}
    for name, load in NORMALIZERS.items():
        if args.only and name not in args.only.split(","):
            continue
        try:
            of = version(name)
            figures[name] = {"version": of, **measure(load(), table)}
        except (ImportError, PackageNotFoundError):
            continue
    report = json.dumps(figures, indent=1)
    print(report)
    if args.json:
        args.json.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
