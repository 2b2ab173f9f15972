"""Greetings, questions about itself, and everything that it does not know."""

from __future__ import annotations

from izwi_models.tiny.recipes.chat.facts import FACTS
from izwi_models.tiny.recipes.chat.turns import Turn
from izwi_models.tiny.recipes.chat.vocabulary import NAMES, WORDS
from izwi_models.tiny.recipes.chat.wording import Draw
from izwi_models.tiny.recipes.chat.words import invented

UNKNOWN = (
    "I do not know that. I am a small model: ask me about numbers, words, units, the time or "
    "simple facts."
)

_GREETINGS = (
    (
        ("(hello|hi|hey|hi there|hello there|hey there|good day|greetings) [izwi]",),
        "Hello! How can I help you?",
    ),
    (("good morning [izwi]", "morning"), "Good morning! How can I help you?"),
    (("good afternoon [izwi]",), "Good afternoon! How can I help you?"),
    (("good evening [izwi]", "evening"), "Good evening! How can I help you?"),
    (("good night [izwi]", "sleep well"), "Good night!"),
    (
        (
            "how are you [doing] [today]",
            "how do you (do|feel) [today]",
            "are you (well|okay|fine)",
            "how is it going",
            "what's up",
        ),
        "I am fine, thank you. How can I help you?",
    ),
    (
        (
            "(who|what) are you",
            "(what is|what's) your name",
            "(tell me|say) (your name|who you are|what you are)",
            "do you have a name",
            "introduce yourself",
            "are you (a robot|a human|a person|real|a computer)",
        ),
        "I am izwi, a small voice assistant.",
    ),
    (
        (
            "(what can you do|what do you do|what are you good at) [for me]",
            "(how can you|can you) help me",
            "what (do you know|can I ask [you])",
            "help [me]",
            "what (are you for|is your job)",
        ),
        "I can calculate, count, spell, compare, convert units, tell the time and simple facts, "
        "and set timers and lights.",
    ),
    (
        (
            "(thanks|thank you|many thanks|thank you very much|thanks a lot|great, thanks)",
            "thank you so much",
        ),
        "You are welcome.",
    ),
    (("(bye|goodbye|bye bye|see you|see you later|that is all|that's all)",), "Goodbye!"),
    (
        ("(okay|ok|alright|all right|fine|good|great|very good|nice|cool|perfect|I see)",),
        "Is there anything else?",
    ),
    (("(stop|be quiet|quiet|silence|never mind|forget it|cancel)",), "All right."),
    (
        ("(can you hear me|do you hear me|are you there|hello, are you there|are you listening)",),
        "Yes, I can hear you.",
    ),
    (("(sorry|I am sorry|excuse me|pardon)",), "No problem. How can I help you?"),
    (
        ("(yes|yeah|yes please|sure|no|nope|no thanks|no thank you)",),
        "All right. What would you like to know?",
    ),
)
_UNKNOWN = (
    "(what is|what's) the weather [like] [today|tomorrow|in {name}]",
    "will it (rain|snow|be sunny) (today|tomorrow)",
    "(write|make|tell) me a (poem|story|song|joke) about [a|the] {word}",
    "tell me a (joke|story|secret)",
    "(what|who) is {name}",
    "who is the (president|king|queen|boss) of [the] {word}",
    "(what is|what's) the capital of {invented}",
    "(which|what) (currency|language) do they (use|speak) in {invented}",
    "(what is|what's) {invented}",
    "(what is|what's|explain) [a|the] {word}",
    "(why|how) (is|are|does|do) the {word} {word2}",
    "(translate|say) {word} (to|in|into) (French|German|Spanish|Latin)",
    "(play|stop|skip) [the|some] (music|song|radio)",
    "(call|text|message|email) {name}",
    "(recommend|suggest) a (movie|book|restaurant|song)",
    "(what do you think|what is your opinion) (of|about) {word}",
    "do you (like|love|know|want) {word}",
    "(how do I|how can I|how do you) (make|fix|build|find|cook) [a|the] {word}",
    "(where is|where can I find|where do I find) [my|the|a] {word}",
    "(who|what) (won|made|broke) the {word}",
    "(what should I|shall I) (eat|do|wear|buy) (today|tonight|tomorrow)",
    "(what is|what's) the (meaning of life|news|price of {word}|score)",
    "(book|order|buy) [me] a {word}",
    "how (old|tall|rich|far) is {name}",
    "when is {name}'s birthday",
    "(I feel|I am) (sad|tired|hungry|bored|happy)",
    "{word} {word2} {word}",
    "(search|look) for {word}",
    "(remember|note|remind me) that {name} likes {word}",
    "(open|close|lock) the (door|window|garage)",
    "(are|can|will) {word}s (fly|swim|talk|dangerous|good)",
    "(who wrote|who painted|who composed|who invented) the {invented}",
    "what does {invented} mean",
    "(what is|what's) my (name|age|address|number)",
    "write (some|a piece of) code (for|that|about) {word}",
    "(is|was) {name} (a|the) {word}",
)


def small_talk(draw: Draw) -> list[Turn]:
    """One greeting, or a question about the assistant."""
    patterns, answer = draw.choice(_GREETINGS)
    return [Turn(draw.ask(patterns), answer)]


def unknown(draw: Draw) -> list[Turn]:
    """One question from outside the closed world."""
    word, other = (draw.choice(WORDS) for _ in range(2))
    name, strange = draw.choice(NAMES), invented(draw).capitalize()
    while any(strange in known for known in FACTS.values()):
        strange = invented(draw).capitalize()
    asked = draw.ask(_UNKNOWN, word=word, word2=other, name=name, invented=strange)
    return [Turn(asked, UNKNOWN)]
