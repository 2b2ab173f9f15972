"""Casual pronunciation: what people leave out, weaken or say otherwise, in Kokoro's phonemes.

espeak-ng gives each word its form of a dictionary. A recognizer that hears nothing else does not
know the words as people say them.
"""

from __future__ import annotations

import random
import re

_VOWELS = "AIOQWYaiuæɑɒɔəɛɜɪʊʌᵊᵻ"
_STRESS, _SIGNS = "ˈˌ", ",.?!;:"
_CONSONANTS = "bdfhjklmnpstvwzðŋɡɹʃʒʤʧθ"
# words as a dictionary has them, and weak forms
_WEAK_FORMS = """
ænd=ən/n/ənd tu=tə/tʊ/tu tʊ=tə fɔɹ=fəɹ/fə ju=jə/jʊ jʊɹ=jəɹ/jə jɔɹ=jəɹ ʌv=əv/ə əv=ə/əv
ðæt=ðət kæn=kən fɹʌm=fɹəm æt=ət æz=əz wɪð=wɪθ/wɪ hɪz=ɪz hɪm=ɪm hɜɹ=əɹ hæz=əz/həz hæv=əv/həv
hæd=əd/həd wʌz=wəz ʌs=əs ðɛm=ðəm/əm wɪl=wəl/əl bʌt=bət ði=ðə ðə=də/ðə ɑɹ=əɹ ɔɹ=əɹ ɪn=ən
ɪt=ət ɪz=əz kʊd=kəd ʃʊd=ʃəd wʊd=wəd ðɛɹ=ðəɹ mI=mə bi=bɪ ʃi=ʃɪ hi=i/hɪ wi=wɪ mi=mɪ
dOnt=dOn/dən ən=n/ən
"""
_WEAK = {form: weak.split("/") for form, weak in (pair.split("=") for pair in _WEAK_FORMS.split())}
# one is drawn for a speaker: pattern, what is said
_ACCENTS = (
    (r"æ(?=[nm])", "ɛ"), (r"ɛ(?=[nm])", "ɪ"), (r"ɔ(?!ɹ)", "ɑ"), (r"ɑ(?!ɹ)", "ɔ"),
    (r"ɑ(?!ɹ)", "ɒ"), (r"I", "ɑ"), (r"O", "ɔ"), (r"A", "ɛ"), (r"ʌ", "ə"), (r"ʌ", "ʊ"),
    (r"θ", "t"), (r"θ", "f"), (r"ð", "d"), (r"ɹ(?![AIOQWYaiuæɑɒɔəɛɜɪʊʌᵊᵻˈˌ])", ""), (r"w", "v"),
    (r"z(?= |$)", "s"), (r"d(?= |$)", "t"), (r"ɪ", "i"), (r"æ", "a"), (r"ʊ", "u"),
    (r"ɜɹ", "əɹ"), (r"u", "ʊ"), (r"v", "w"), (r"T", "t"), (r"T", "d"), (r"iə", "ɪ"),
)  # fmt: skip
# pattern, what is said, and how often, relative to a speaker's carelessness
_REDUCED = (
    (rf"(?<=[{_CONSONANTS}])[td](?= [{_CONSONANTS}])", "", 0.8),
    (r"(?<=n)t(?=[ˈˌ]?[əɪiᵊ])", "", 0.6),
    (rf"(?<=[{_VOWELS}ɹ])t(?=[ᵊəɪi])", "T", 0.8),
    (r"(?<=[^ˈˌ ])ɪŋ(?= |$)", "ɪn", 0.4),
    (rf"(?<![{_STRESS}{_VOWELS}])[ɪɛʊʌɑæ](?=[{_CONSONANTS}][^ ])", "ə", 0.5),
    (rf"(?<=[{_CONSONANTS}])ə(?=[lɹn][əɪi])", "", 0.6),
    (r"t(?= j)", "ʧ", 0.5),
    (r"d(?= j)", "ʤ", 0.5),
    (r"ᵊn(?= |$)", "n", 0.4),
    (r"[ˈˌ]", "", 0.35),
)  # fmt: skip


def casual(phonemes: str, draw: random.Random) -> str:
    """Say an utterance as one of many people might; two fifths speak as the dictionary says.

    Args:
        phonemes: From `Phonemizer.read`.
        draw: What is drawn from.

    Returns:
        Phonemes with as many words.
    """
    if draw.random() < 0.4:
        return phonemes
    careless = draw.uniform(0.1, 0.8)
    words = [_weak(word, careless, draw) for word in phonemes.split(" ")]
    said = " ".join(words)
    for pattern, instead, share in _REDUCED:
        said = _replaced(said, pattern, instead, share * careless, draw)
    for pattern, instead in draw.sample(_ACCENTS, draw.choice((0, 0, 0, 1))):
        said = _replaced(said, pattern, instead, 0.8, draw)
    return " ".join(
        new if new.strip(_STRESS + _SIGNS) else old
        for new, old in zip(said.split(" "), phonemes.split(" "), strict=True)
    )


def _weak(word: str, careless: float, draw: random.Random) -> str:
    bare = word.rstrip(_SIGNS)
    forms = _WEAK.get(bare.replace("ˈ", "").replace("ˌ", ""))
    if forms is None or draw.random() > careless:
        return word
    return draw.choice(forms) + word[len(bare) :]


def _replaced(said: str, pattern: str, instead: str, share: float, draw: random.Random) -> str:
    return re.sub(pattern, lambda found: instead if draw.random() < share else found[0], said)
