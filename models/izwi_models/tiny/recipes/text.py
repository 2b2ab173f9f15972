"""Collect English sentences from Debian packages, and split them into training and held-out text.

Natural sources are WordNet's examples and definitions, fortune cookies, and the prose of a few
manuals. Templates add what assistants often say (numbers, dates, requests). A trigram chain over
the natural sentences adds new ones, so that frequent words occur in many contexts.
"""

from __future__ import annotations

import argparse
import gzip
import html
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from izwi_models.tiny.recipes.short import short_utterances
from izwi_models.tiny.recipes.templates import template_sentence

HELDOUT = Path(__file__).with_name("heldout.txt")
HELDOUT_SENTENCES = 400
EVERYDAY_WORDS = 5000
_ALLOWED = re.compile(r"^[A-Za-z][A-Za-z ,.'?!-]+$")
_AVOIDED_FORTUNES = re.compile(
    r"ascii|perl|riddles|men-women|drugs|ethnic|politics|zippy|sex|knghtbrd|linux|magic|startrek"
)


def clean(sentence: str) -> str | None:
    """Normalize spelling and punctuation; None if it is not a sentence that can be spoken."""
    sentence = sentence.replace("’", "'").replace("‘", "'").replace("--", ", ")
    sentence = sentence.replace(";", ",").replace(":", ",").replace("“", "").replace("”", "")
    sentence = re.sub(r"\s+", " ", sentence).strip(" ,-'")
    sentence = re.sub(r"\s+([,.?!])", r"\1", sentence)
    sentence = re.sub(r"([,.?!])[,.?!]+", r"\1", sentence)
    if not sentence or not _ALLOWED.match(sentence) or not 10 <= len(sentence) <= 100:
        return None
    sentence = sentence[0].upper() + sentence[1:]
    sentence += "" if sentence[-1] in ".?!" else "."
    found = words(sentence)
    odd = re.search(r"[A-Z]{2,}|\w\.\w|'[^a-z]|[^a-z]'|\b[b-hj-zB-HJ-Z]\b", sentence)
    capitals = sum(word[0].isupper() for word in sentence.split())
    if odd or not 3 <= len(found) <= 16 or capitals > 1 + len(found) // 4:
        return None
    return None if any(len(word) > 14 for word in found) else sentence


def words(sentence: str) -> list[str]:
    """Return the lower-case words of a sentence, without punctuation."""
    return re.sub(r"[^a-z' ]", " ", sentence.lower().replace("-", " ")).split()


def wordnet_glosses(root: Path) -> Iterator[str]:
    """Yield each word's entry in WordNet: a definition and quoted examples."""
    for path in sorted((root / "usr/share/wordnet").glob("data.*")):
        for line in path.read_text(errors="ignore").splitlines():
            yield line.partition("|")[2]


def definitions(root: Path) -> Iterator[str]:
    """Yield first definitions of five words or more: fragments with rare words."""
    for gloss in wordnet_glosses(root):
        definition = re.sub(r'"[^"]*"|\([^)]*\)', "", gloss).split(";")[0].strip()
        if len(definition.split()) >= 5:
            yield definition


def prose_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of four words or more in a text."""
    for sentence in re.split(r"(?<=[.?!])\s+", re.sub(r"\s+", " ", text)):
        if len(sentence.split()) >= 4:
            yield sentence


def package_sentences(root: Path) -> Iterator[str]:
    """Yield the sentences in the Debian packages that the README names, below `root`."""
    for gloss in wordnet_glosses(root):
        yield from re.findall(r'"([^"]+)"', gloss)
    for path in sorted((root / "usr/share/games/fortunes").glob("*")):
        if path.suffix not in (".dat", ".u8") and not _AVOIDED_FORTUNES.search(path.name):
            for cookie in path.read_text(errors="ignore").split("\n%\n"):
                yield from prose_sentences(cookie)
    pages = sorted((root / "usr/share/doc/anarchism").rglob("*.html*"))
    pages += sorted((root / "usr/share/help/C").rglob("*.page"))
    pages += sorted((root / "usr/share/doc/debian-handbook/html/en-US").rglob("*.html"))
    for path in pages:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        page = re.sub(r"<(p|h\d|li|desc|title)\b[^>]*>", "\n\n", raw.decode("utf8", "ignore"))
        for paragraph in html.unescape(re.sub(r"<[^>]+>", " ", page)).split("\n\n"):
            yield from prose_sentences(paragraph)


def cleaned(sentences: Iterable[str]) -> list[str]:
    """Clean sentences and drop duplicates, in order."""
    return list(dict.fromkeys(filter(None, map(clean, sentences))))


def frequent_words(sentences: Iterable[str], number: int) -> set[str]:
    """Return the `number` most frequent words."""
    counts = Counter(word for sentence in sentences for word in words(sentence))
    return {word for word, _ in counts.most_common(number)}


def is_everyday(sentence: str, vocabulary: set[str]) -> bool:
    """Return whether a sentence has 4 to 14 words, all in `vocabulary`."""
    found = words(sentence)
    return 4 <= len(found) <= 14 and all(word in vocabulary for word in found)


def chained(sentences: list[str], vocabulary: set[str], number: int, seed: int) -> list[str]:
    """Draw new everyday sentences from the trigrams of `sentences`."""
    following: dict[tuple[str, str], list[str]] = defaultdict(list)
    for sentence in sentences:
        pieces = ["", "", *sentence.split(), ""]
        for first, second, third in zip(pieces, pieces[1:], pieces[2:], strict=False):
            following[first, second].append(third)
    generator = random.Random(seed)
    made: dict[str, None] = {}
    known = set(sentences)
    while len(made) < number:
        pieces = ["", ""]
        while len(pieces) < 18 and (word := generator.choice(following[pieces[-2], pieces[-1]])):
            pieces.append(word)
        made_up = clean(" ".join(pieces[2:]))
        if made_up and made_up not in known and is_everyday(made_up, vocabulary):
            made[made_up] = None
    return list(made)


def split_heldout(everyday: list[str], templates: list[str], seed: int) -> list[str]:
    """Draw the held-out sentences: four fifths natural, one fifth from templates."""
    generator = random.Random(seed)
    spoken = HELDOUT_SENTENCES // 5
    natural = generator.sample(everyday, HELDOUT_SENTENCES - spoken)
    return natural + generator.sample(templates, spoken)


def build(roots: list[Path], number: int, short: int, seed: int) -> tuple[list[str], list[str]]:
    """Return training sentences in random order, with `short` short ones, and held-out ones."""
    generator = random.Random(seed)
    natural = cleaned(s for root in roots for s in package_sentences(root))
    templates = cleaned(template_sentence(generator) for _ in range(number // 6))
    vocabulary = frequent_words([*natural, *templates], EVERYDAY_WORDS)
    everyday = [s for s in natural if is_everyday(s, vocabulary)]
    if HELDOUT.is_file():  # checkpoints were measured on it, so it stays held out
        heldout = HELDOUT.read_text().splitlines()
    else:
        spoken = [s for s in templates if is_everyday(s, vocabulary)]
        heldout = split_heldout(everyday, spoken, seed)
    secret = {tuple(words(s)) for s in heldout}
    natural = [s for s in natural if tuple(words(s)) not in secret]
    rare = [s for s in natural if not is_everyday(s, vocabulary)]
    rare += cleaned(s for root in roots for s in definitions(root))
    generator.shuffle(rare)
    train = [s for s in natural if is_everyday(s, vocabulary)] + templates + rare[: number // 4]
    print(f"{len(everyday)} natural and everyday, {len(rare)} rarer, {len(templates)} templates")
    train += chained(natural, vocabulary, max(0, number - len(train)), seed)
    train = [s for s in dict.fromkeys(train) if tuple(words(s)) not in secret]
    train += short_utterances(vocabulary, train, short, seed)
    generator.shuffle(train)
    return train, heldout


def main() -> None:
    """Write train.txt, and heldout.txt if it does not exist."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for train.txt")
    parser.add_argument("--roots", type=Path, nargs="+", default=[Path("/")])
    parser.add_argument("--number", type=int, default=160_000)
    parser.add_argument("--short", type=int, default=40_000, help="utterances of 1 to 3 words")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    train, heldout = build(args.roots, args.number, args.short, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "train.txt").write_text("\n".join(train) + "\n")
    HELDOUT.write_text("\n".join(heldout) + "\n")
    print(f"{len(train)} sentences to train on, {len(heldout)} held out")


if __name__ == "__main__":
    main()
