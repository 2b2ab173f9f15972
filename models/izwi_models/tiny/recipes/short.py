"""Utterances of one to three words: greetings, yes and no, numbers, days, and single words."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from izwi_models.tiny.recipes.templates import spell

HELDOUT_SHORT = Path(__file__).with_name("heldout_short.txt")
_ALL_PHRASES = (
    "yes|no|okay|all right|sure|maybe|hello|hi|hey|hello there|good morning|good afternoon|"
    "good evening|good night|goodbye|bye|see you|see you soon|see you later|thank you|thanks|"
    "thank you very much|thanks a lot|you are welcome|please|yes please|no thanks|no thank you|"
    "excuse me|sorry|I am sorry|never mind|of course|not now|not yet|right now|later|wait|"
    "wait please|stop|go|go on|go ahead|come in|come here|well done|good job|good luck|"
    "great|perfect|wonderful|very good|how are you|I am fine|what time|what now|why not|who is it|"
    "where|when|why|how|what|help|help me|listen|look|next|back|up|down|left|right|turn left|"
    "turn right|straight on|play|pause|repeat|again|once more|louder|quieter|volume up|"
    "volume down|lights on|lights off|turn it on|turn it off|cancel|continue|done|ready|"
    "I understand|I see|I know|I agree|that is right|that is wrong|no problem|one moment|"
    "just a moment|hurry up|be quiet|welcome|welcome back|happy birthday|congratulations|"
    "open the door|close the window|call me|call a taxi|today|tomorrow|yesterday|tonight|"
    "next week|last night|this morning|every day|on Monday|good idea|take care|have fun|"
    "sleep well|nice day|not bad|so what|too late|too early|very well|my friend|dear friend"
)
_PHRASES = _ALL_PHRASES.split("|")
_ALL_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_DAYS = _ALL_DAYS.split()
_ALL_MONTHS = (
    "January February March April May June July August September October November December"
)
_MONTHS = _ALL_MONTHS.split()
# How espeak-ng says what it would spell otherwise. A transcriber that never heard it writes words.
_SPOKEN = {
    "Mm-hm.": ("m'mh'Vm", "m'mh'm", "mh'm", "mh'Vm", "m,mh'Vm"),
    "Uh-huh.": ("V'h'V", "Vh'V", "@h'V", "V'hV"),
    "Hmm.": ("h'm", "h'm:", "m'm"),
    "Yeah.": ("j'Eh", "j'E@"),
    "Huh?": ("h'V", "h'@"),
    "Ah.": ("'A:",),
    "Oh.": ("'oU",),
    "Um.": ("'Vm",),
    "Hey.": ("h'eI", "h'eI:"),  # none of them, but like "Ah." when it is said slowly
}
_ALL_NAMES = "Anna Peter Maria John Sarah David Emma Michael Laura Thomas Julia Robert Alice"
_NAMES = _ALL_NAMES.split()


def everyday_phrase(generator: random.Random) -> str:
    """Draw one, without a full stop."""
    kind = generator.random()
    if kind < 0.45:
        return generator.choice(_PHRASES)
    if kind < 0.65:
        return spell(generator.randrange(generator.choice((21, 100, 100, 1000))))
    if kind < 0.75:
        return generator.choice([*_DAYS, *_MONTHS])
    if kind < 0.85:
        return f"{generator.choice(_MONTHS)} {spell(generator.randint(1, 31))}"
    if kind < 0.95:
        greeting = generator.choice(("hello", "good morning", "goodbye", "thank you", "yes", "no"))
        return f"{greeting} {generator.choice(_NAMES)}"
    return f"{spell(generator.randint(1, 12))} o'clock"


def punctuated(phrase: str, generator: random.Random) -> str:
    """A capital first and a sign at the end."""
    asks = phrase.split()[0].lower() in ("how", "what", "why", "who", "where", "when")
    end = "?" if asks else generator.choice("....!")
    return phrase[0].upper() + phrase[1:] + end


def _plain(text: str) -> str:
    return text.lower().rstrip(".?!")


def short_utterances(
    vocabulary: Iterable[str], sentences: list[str], number: int, seed: int
) -> list[str]:
    """Draw short utterances: two fifths everyday ones, the rest words alone and beside others.

    Args:
        vocabulary: Frequent words; each is said alone once if `number` allows.
        sentences: Where pairs and triples of words come from.
        number: How many.
        seed: Of the drawing.
    """
    generator = random.Random(seed)
    secret = set(map(_plain, HELDOUT_SHORT.read_text().splitlines()))
    made = [punctuated(everyday_phrase(generator), generator) for _ in range(2 * number // 5)]
    made += [punctuated(word, generator) for word in sorted(vocabulary) if len(word) > 1]
    while len(made) < number:
        pieces = generator.choice(sentences).rstrip(".?!").split()
        count = generator.randint(2, 3)
        start = generator.randrange(max(1, len(pieces) - count + 1))
        phrase = " ".join(pieces[start : start + count]).strip(" ,")
        made.append(punctuated(phrase, generator))
    kept = [text for text in made if len(text.split()) < 2 or _plain(text) not in secret]
    generator.shuffle(kept)
    return kept[:number]


def backchannels(number: int, seed: int) -> list[tuple[str, str, float]]:
    """Draw short sounds of a listener ("Mm-hm."), of a hesitating speaker ("Um."), and "Hey.".

    Args:
        number: How many.
        seed: Of the drawing.

    Returns:
        How each is written, what espeak-ng must be given to say it (phonemes in brackets), and its
        speed relative to the voice's own: listeners take their time.
    """
    generator = random.Random(seed)
    written = generator.choices(list(_SPOKEN), (4, 4, 2, 2, 1, 1, 1, 1, 2), k=number)
    return [
        (text, f"[[{generator.choice(_SPOKEN[text])}]]", round(generator.uniform(0.65, 1.05), 2))
        for text in written
    ]


def draw_heldout(number: int = 200, seed: int = 11) -> list[str]:
    """The everyday utterances that figures are measured on; single words of them are trained."""
    generator = random.Random(seed)
    drawn: dict[str, None] = {}
    while len(drawn) < number:
        phrase = everyday_phrase(generator)
        drawn[punctuated(phrase, random.Random(0)).replace("!", ".")] = None
    return list(drawn)
