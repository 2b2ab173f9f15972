"""English text as it is spoken: without digits, abbreviations, addresses or markup.

Some text is ambiguous without its meaning ("9/11", "St."). The rules choose the more common
reading, and prefer a reading that is always understood over one that is sometimes more elegant.
"""

from __future__ import annotations

import re
import unicodedata
from re import Match

from izwi_models.english.citations import without_citations
from izwi_models.english.dates import DATE_WORDS, say_dates
from izwi_models.english.money import CODES
from izwi_models.english.numbers import cardinal, ordinal
from izwi_models.english.numerals import join_thin_spaces
from izwi_models.english.phones import CALLS
from izwi_models.english.quantities import say_quantities
from izwi_models.english.ranges import say_ranges
from izwi_models.english.signs import part_names, say_code, say_signs
from izwi_models.english.units import UNITS

# A point after these does not end a sentence.
_TITLES = {
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miss",
    "Dr": "Doctor",
    "Prof": "Professor",
    "Gen": "General",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Gov": "Governor",
    "Sen": "Senator",
    "Rev": "Reverend",
    "Fr": "Father",
    "Hon": "Honorable",
    "Col": "Colonel",
    "Maj": "Major",
    "Drs": "Doctors",
    "Ft": "Fort",
    "Mt": "Mount",
    "vs": "versus",
    "Approx": "Approximately",
    "approx": "approximately",
    "vol": "volume",
    "Vol": "Volume",
    "Ch": "Chapter",
    "pp": "pages",
    "Fig": "Figure",
    "fig": "figure",
}
# A point after these ends a sentence if a capital or the end of the line follows.
_ENDINGS = {
    "Bros": "Brothers",
    "Esq": "Esquire",
    "Jr": "Junior",
    "Sr": "Senior",
    "etc": "et cetera",
    "dept": "department",
    "Dept": "Department",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Corp": "Corporation",
    "Ave": "Avenue",
    "Blvd": "Boulevard",
    "Rd": "Road",
}
_DOTTED_WORDS = {
    "e.g.": "for example",
    "i.e.": "that is",
    "E.g.": "For example",
    "I.e.": "That is",
    "a.k.a.": "also known as",
    "Ph.D.": "P H D",
}
# Without a point, and short ones whose point belongs to the following number.
_BARE = {
    "Mr": "Mister",
    "Mrs": "Missus",
    "Dr": "Doctor",
    "Prof": "Professor",
    "approx": "approximately",
    "PhD": "P H D",
    "PhDs": "P H D's",
    "WWI": "World War one",
    "WWII": "World War two",
    "b/c": "because",
    "vs": "versus",
    "pp": "pages",
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "thx": "thanks",
    "pls": "please",
    "ppl": "people",
}
_BEFORE_NUMBER = {
    "min": "minimum",
    "max": "maximum",
    "tel": "telephone",
    "ext": "extension",
    "est": "established",
    "apt": "apartment",
    "ste": "suite",
    "nos": "numbers",
    "p": "page",
    "pp": "pages",
    "figs": "figures",
}
_RULERS = "Louis Henry Elizabeth Charles George James Edward William Richard Philip Benedict"
_SHARP_NAMES = {"C#": "C sharp", "F#": "F sharp"}
_SYMBOLS = str.maketrans(
    {
        "&": " and ",
        "+": " plus ",
        "=": " equals ",
        "@": " at ",
        "#": " number ",
        "%": " percent ",
        "°": " degrees ",
        "§": " section ",
        "÷": " divided by ",
        "×": " times ",
        "≈": " about ",
        "≤": " at most ",
        "≥": " at least ",
        "→": ", ",
        "±": " plus or minus ",
        "√": " square root of ",
    }
)
_SMALL_WORDS = frozenset(
    re.findall(
        r"\w+",
        """AM AN AND ANY ARE AS AT BAD BE BIG BUT BY CAN DAY DID DO END FAR FEW FOR GET GO GOT HAD
        HAS HE HER HIM HIS HOT HOW IF IN IS IT ITS LET MAN MAY ME MY NEW NO NOR NOT NOW OF OFF OH
        OLD ON ONE OR OUR OUT OWN RED RUN SAW SAY SEE SHE SIT SO TEN THE TO TOO TOP TRY TWO UP WAS
        WAY WE WHO WHY WIN YES YET YOU""",
    )
)
_LONGEST_SPELLED = 3
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50}

_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff™®©]"
)
_ACCENT = re.compile("[\u0300-\u036f]")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)\S*", re.MULTILINE)
_BULLETS = re.compile(r"^(?:[ \t]*(?:#{1,6}|>+|[-*•+](?:[ \t]+\[[ xX]\])?)[ \t]+)+", re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*(\d{1,3})[.)][ \t]+", re.MULTILINE)
_DASH = re.compile(r"(?:(?<=\s)|^)-+(?=\s)|-{2,}")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,80})\]\([^)\s]{0,200}\)")
# a link, or the beginning of one whose last word has not arrived yet
_OPEN_LINK = re.compile(r"!?\[[^\[\]\n]{0,80}(?:\](?:\([^)\s]{0,200}(?:\)\S*)?)?)?$")
_ATTRIBUTE = r"[\w-]{1,40}=(?:\"[^\"<>]{0,200}\"|'[^'<>]{0,200}')"
_TAG = re.compile(rf"</?[A-Za-z][\w-]{{0,20}}(?:\s+{_ATTRIBUTE}){{0,20}}\s*/?>")
_SCHEME = re.compile(r"\bmailto:(?=\S+@)")
_EMAIL = re.compile(r"\b([\w.+-]+)@([\w-]+(?:\.[\w-]+)+)\b")
_TOP_LEVEL = "com|org|net|edu|gov|io|dev|ai|co|uk|us|ca|de|fr|info|app|example|test"
_URL = re.compile(
    r"\b(?:(?:https?|ftp)://|www\.)[^\s<>\"]+"
    rf"|\b(?:[a-z\d-]+\.)+(?:{_TOP_LEVEL})\b(?!\.?\w)(?::\d{{2,5}}\b)?(?:/[^\s<>\"]*)?"
)
_FILE = re.compile(r"(?<=[A-Za-z\d])\.(?=[a-z])")
_SNAKE = re.compile(r"(?<=[^\W_])_+(?=[^\W_])")
_LETTERS = re.compile(r"\b(?:[A-Za-z]\.){2,}(?!\w)(?=(\n)?)")
_TITLE = re.compile(rf"\b({'|'.join(_TITLES)})\.(?=[^\S\n])")
_ENDING = re.compile(rf"\b({'|'.join(_ENDINGS)})\.(?=(\s+[A-Z]|\n)?)")
_STREET = re.compile(r"\bSt\.(?= ([A-Z][a-z])?|\n)")
# A sentence that begins after a street: "on Elm St. It was".
_STREET_END = re.compile(r"\bSt\.(?= (?:A|An|And|At|But|He|I|In|It|On|She|The|They|We)\b)")
_BARE_WORD = re.compile(rf"(?<![\w/])({'|'.join(_BARE)})\b(?!\.)")
_COUNTED_WORD = re.compile(rf"\b({'|'.join(_BEFORE_NUMBER)})\.(?= ?\d)", re.IGNORECASE)
_CIRCA = re.compile(r"\bc\. ?(?=\d{3,4}\b)")
_RULER = re.compile(rf"\b({_RULERS.replace(' ', '|')}) (?=[IVX]{{2}})(X?(?:IX|IV|V?I{{0,3}}))\b")
# "IV", "VI" and "XI" may be something else
_LONE_ROMAN = re.compile(r"\b(?:I{2,3}|VI{2,3}|IX|XI{2,3}|XIV|XVI{0,3}|XIX)\b")
_NUMERO = re.compile(r"\b[Nn]o\. *(?=\d)")
_ROMAN_NUMBER = re.compile(
    r"\b((?:[Cc]hapter|[Pp]art|[Ss]ection|[Aa]ct|[Vv]olume|[Ww]orld [Ww]ar|[Pp]hase|[Ll]evel) )"
    r"([IVXL]+)\b"
)
_INITIAL = re.compile(r"(?<![^\s(\"'])([B-HJ-Z])\.(?= [A-Z])")
_JOINED_LETTERS = re.compile(r"\b([A-Z]{1,3})&([A-Z]{1,3})\b")
_WITH = re.compile(r"(?<!\S)w/(o)?(?:[^\S\n]|(?=\w))")
_CAPITALS = re.compile(r"\b([A-Z]{2,})(s)?\b")
# Words without a vowel are said letter by letter, apart from sounds.
_LETTERED = re.compile(r"(?<![\w'])(?<!dot )[bcdfghjklmnpqrstvwxz]{2,5}(?![\w'])")
_SOUNDS = re.compile(r"h+m+|m+h*m*|sh+|ps+t|pf+t?|gr+|br+|z+|ts+k?|bz+t?|nth|th|st|nd|rd|ft")
_COMPARED = re.compile(r"(?:(?<=\s)|^)([<>])(=?)(?=\s)")
_HASHTAG = re.compile(r"#(?=[A-Za-z])")

# Words that are read differently, or make the next word so, depending on their neighbour: "5 km",
# "(555) 123-4567".
_OPEN = re.compile(
    r"[\d$£€¥₹₩₿~№]|[-–+<>=(]$|^[(\"']?[B-HJ-Z]\.$|^[^\w\s]{1,3}$|^x$"
    rf"|<[A-Za-z][\w-]*$|^{_ATTRIBUTE}$"  # a tag that continues
)
_OPENERS = (
    DATE_WORDS
    | frozenset(_ENDINGS)
    | frozenset(("No", "no", "St", "USD", "EUR", "GBP", "JPY", "w/", "w/o"))
    | {"Chapter", "chapter", "Part", "part", "Section", "section", "Act", "act", "Volume", "volume"}
    | {"ft", "lb", "lbs", "oz", "hr", "hrs", "min", "sec"}  # with a point after it
    | {"sq", "fl"}
    | {"c", *_BEFORE_NUMBER, *map(str.title, _BEFORE_NUMBER), *_RULERS.split()}
    | {*CODES, "Rs", "rs", "zl", "per"}
    | {word.title() for word in CALLS.split("|")}
    | set(CALLS.split("|"))
    | {"World", "world", "War", "war", "Phase", "phase", "Level", "level"}
)
# Words after a number whose reading, or the number's, depends on the next word: "1493 to 1479 BC".
_JOINTS = frozenset(
    ("to", "and", "or", "hundred", "thousand", "million", "billion", "trillion", *UNITS)
)
_DIGIT = re.compile(r"[\d½¼¾]")
_JOINT = re.compile(r"[-–—.,:;!?(/\"']")
_IN_BRACKETS = re.compile(r"\[[^\[\]\n]{0,80}")
_IN_TAG = re.compile(
    rf"<[A-Za-z][\w-]{{0,20}}(?:(?:\s+{_ATTRIBUTE}){{1,20}}\s+|(?:\s+{_ATTRIBUTE}){{0,20}}\s+"
    r"[\w-]{1,40}=(?:\"[^\"<>]{0,200}|'[^'<>]{0,200}))"
)
# A number in a list, "1, 2, 3,". After two others it is read alone: dates have no third.
_LISTED = re.compile(r"\d{1,15},")
# A longer run of these words is processed in parts.
_LONGEST_OPEN = 400


def say_english(text: str, *, begins_line: bool = True) -> str:
    """Return text as words and punctuation.

    Args:
        text: Any text: the whole, or cut at an index from `settled`.
        begins_line: Only white space is before it on its line.

    Returns: Letters, white space and punctuation. Text that is not English stays, without accents.
    """
    text = text.replace("’", "'").replace("‘", "'").replace("№", "No. ")
    text = say_signs(join_thin_spaces(_UNSEEN.sub("", text)))
    if not text.isascii():
        text = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
    text = re.sub(r"[^\S\n]", " ", text)
    text = _without_markup(text, begins_line)
    text = say_code(_SCHEME.sub("", text))
    text = _EMAIL.sub(lambda m: f"{_address(m[1])} at {_address(m[2])}", text)
    text = _URL.sub(_url, text)
    text = _say_abbreviations(text)
    text = say_dates(text)
    text = _HASHTAG.sub(" hashtag ", text)
    text = say_quantities(_FILE.sub(" dot ", text))
    text = _COMPARED.sub(_compared, text)
    text = part_names(_SNAKE.sub(" ", text.translate(_SYMBOLS)))
    text = _LETTERED.sub(_spelled, text)
    return re.sub(r" +(?='s\b)", "", _CAPITALS.sub(_read_capitals, text))


def settled(text: str) -> int:
    """Return the length of the part that `say_english` reads the same whatever follows it.

    It ends after the white space before the last words whose reading may depend on what follows.
    """
    link = text.rfind("[")
    if link > 0 and text[link - 1] == "!":
        link -= 1
    end = len(text)
    if link >= 0 and _OPEN_LINK.match(text, link):
        end = link
    stop = _settled_before(text, end)
    while stop and (begun := _begun(text, stop)) is not None:
        stop = _settled_before(text, begun)
    return stop


def _begun(text: str, stop: int) -> int | None:
    """Return where brackets or a tag begin in which a place is."""
    link, tag = text.rfind("[", 0, stop), text.rfind("<", 0, stop)
    if link >= 0 and _IN_BRACKETS.fullmatch(text, link, stop):
        return link
    return tag if tag >= 0 and _IN_TAG.fullmatch(text, tag, stop) else None


def _settled_before(text: str, end: int) -> int:
    """Return the last place up to `end` with white space before it and no open word."""
    stop, after = end, ""
    while stop > end - _LONGEST_OPEN:
        while stop and not text[stop - 1].isspace():
            stop -= 1
        if not stop:
            return 0
        before = text[:stop].rstrip()
        if "\n" in text[len(before) : stop]:
            return stop
        *earlier, word = before[-_LONGEST_OPEN:].rsplit(maxsplit=2) or [""]
        if not word or not (_is_open(word) or _joins(word, earlier[-1:])):
            return stop
        if _LISTED.fullmatch(after) and _ends_in_list(before):
            return stop
        stop, after = len(before) - len(word), word
    return stop


def _joins(word: str, before: list[str]) -> bool:
    """Whether a word stands between two numbers, or is the unit of one."""
    return word in _JOINTS and bool(before) and _DIGIT.search(before[0]) is not None


def _ends_in_list(text: str) -> bool:
    words = text.rsplit(maxsplit=2)[-2:]
    return len(words) == 2 and all(map(_LISTED.fullmatch, words))


def _is_open(word: str) -> bool:
    plain = unicodedata.normalize("NFKD", word)
    name = plain.rstrip(".,")
    last = _JOINT.split(name)[-1]  # a day may follow "Jan-Feb", as it may follow "Feb"
    opens = name in _OPENERS or last in _OPENERS or last.lower() in DATE_WORDS
    is_month = last.isalpha() and last.title() in DATE_WORDS
    return bool(_OPEN.search(plain)) or opens or is_month


def _without_markup(text: str, begins_line: bool) -> str:
    first = "" if begins_line else "\0 "  # so that the text cut there does not begin a line
    text = _BULLETS.sub("", _FENCE.sub("", first + text))
    text = _NUMBERED.sub(r"\1, ", text)
    text = _TAG.sub(" ", _LINK.sub(r"\1", without_citations(text)))
    return _DASH.sub(",", say_ranges(text)).removeprefix(first)


def _say_abbreviations(text: str) -> str:
    text = _NUMERO.sub("number ", text)
    for short, words in (*_DOTTED_WORDS.items(), *_SHARP_NAMES.items()):
        text = text.replace(short, words)
    if "St." in text:
        text = _STREET_END.sub("Street.", text)
        text = _STREET.sub(lambda m: "Saint" if m[1] else "Street", text)
    text = _CIRCA.sub("circa ", text)
    text = _COUNTED_WORD.sub(_counted_word, text)
    text = _RULER.sub(lambda m: f"{m[1]} the {ordinal(_roman(m[2]))}", text)
    text = _ROMAN_NUMBER.sub(lambda m: f"{m[1]}{cardinal(str(_roman(m[2])))}", text)
    text = _LONE_ROMAN.sub(lambda m: cardinal(str(_roman(m[0]))), text)
    text = _BARE_WORD.sub(lambda m: _BARE[m[1]], text)
    text = _TITLE.sub(lambda m: _TITLES[m[1]], text)
    text = _ENDING.sub(lambda m: _ENDINGS[m[1]] + ("." if m[2] else ""), text)
    text = _WITH.sub(lambda m: "without " if m[1] else "with ", text)
    text = _JOINED_LETTERS.sub(lambda m: f"{' '.join(m[1])} and {' '.join(m[2])}", text)
    return _INITIAL.sub(r"\1", _LETTERS.sub(_dotted_letters, text))


def _counted_word(match: Match[str]) -> str:
    words = _BEFORE_NUMBER[match[1].lower()]
    return words.capitalize() if match[1][0].isupper() else words


def _dotted_letters(match: Match[str]) -> str:
    if match[0].lower() in ("a.m.", "p.m."):
        return match[0]
    return match[0].replace(".", " ").upper().rstrip() + ("." if match[1] else "")


def _address(text: str) -> str:
    for mark, word in ((".", "dot"), ("-", "dash"), ("_", "underscore"), ("+", "plus")):
        text = text.replace(mark, f" {word} ")
    return re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])", " ", text)


def _url(match: Match[str]) -> str:
    url = match[0].rstrip(".,;:!?)'")
    rest = match[0][len(url) :]
    bare = re.sub(r"^(?:(?:https?|ftp)://)?(?:www\.)?", "", url)
    place = re.split(r"[?#]", bare)[0].rstrip("/")
    return _address(place).replace("/", " slash ").replace(":", " colon ") + rest


def _spelled(match: Match[str]) -> str:
    return match[0] if _SOUNDS.fullmatch(match[0]) else " ".join(match[0].upper())


def _compared(match: Match[str]) -> str:
    words = "less than" if match[1] == "<" else "more than"
    return f"{words} or equal to" if match[2] else words


def _roman(letters: str) -> int:
    values = [_ROMAN[letter] for letter in letters]
    after = (*values[1:], 0)
    return sum(-v if v < n else v for v, n in zip(values, after, strict=True))


def _read_capitals(match: Match[str]) -> str:
    word, plural = match[1], match[2]
    if word in _SMALL_WORDS:
        return match[0].lower()
    if len(word) <= _LONGEST_SPELLED or not set(word) & set("AEIOUY"):
        return " ".join(word) + ("'s" if plural else "")
    return match[0].lower()
