"""Greetings, questions about the assistant, and questions that it cannot answer."""

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

_NAMED = "[izwi|there|my friend|assistant]"
_GREETINGS = (
    (
        (
            f"(hello|hi|hey|good day|greetings) {_NAMED}",
            "(hello|hi|hey|good day), (hello|nice to meet you|nice to see you) [izwi]",
            "(hello|hi|hey) again [izwi|my friend]",
        ),
        "Hello! How can I help you?",
    ),
    *(
        (
            (
                f"[a] [very] good {time} [to you] {_NAMED}",
                f"{time} {_NAMED}",
                f"(hello|hi|hey) [and] [a] good {time} [izwi]",
            ),
            f"Good {time}! How can I help you?",
        )
        for time in ("morning", "afternoon", "evening")
    ),
    (
        (
            f"[a] good night [to you] {_NAMED}",
            "(sleep well|good night and sleep well|sleep well and good night) [izwi|my friend]",
        ),
        "Good night!",
    ),
    (
        (
            "how are (you|things) [doing|going] [today|now] [izwi|my friend]",
            "how do you (do|feel) [today|now] [izwi|my friend]",
            "are you [doing|feeling] (well|okay|fine|good) [today|now]",
            "(how is|how's) (it|everything) going [today|now] [izwi]",
            "what's up [today|now] [izwi|my friend]",
        ),
        "I am fine, thank you. How can I help you?",
    ),
    (
        (
            "(who|what) are you [exactly|really|izwi]",
            "(what is|what's) your name [exactly|really]",
            "[can you|could you] (tell me|say) (your name|who you are|what you are)",
            "do you [really] have a name",
            "(introduce yourself|can you introduce yourself|could you introduce yourself)",
            "are you [really] (a robot|a human|a person|real|a computer|a machine|a real person)",
            "(are|so are) you a (real|computer|human) [person|robot|assistant]",
        ),
        "I am izwi, a small voice assistant.",
    ),
    (
        (
            "(what can you|what do you|what else can you) do [for me] [izwi]",
            "what are you (good at|good for|for)",
            "(how can you|can you|could you|how could you) help me [izwi]",
            "what (do you know|can I ask|may I ask) [you] [izwi]",
            "(help|help me|I need help|I need some help|give me help|give me some help)",
            "(what is|what's) your (job|work)",
        ),
        "I can calculate, count, spell, compare, convert units, tell the time and simple facts, "
        "and set timers and lights.",
    ),
    (
        (
            "[great|okay|many|perfect|very good] thanks [a lot|so much|very much] [izwi|my friend]",
            "[great|okay|perfect|very good] thank you [so much|very much|a lot] [izwi|my friend]",
        ),
        "You are welcome.",
    ),
    (
        (
            "(bye|goodbye|bye bye) [for now] [izwi|my friend]",
            "see you [later|soon|tomorrow] [izwi|my friend]",
            "(that is|that's|that was) all [for now|for today] [izwi]",
            "(bye|goodbye|bye bye) [and] see you [later|soon|tomorrow]",
        ),
        "Goodbye!",
    ),
    (
        (
            "(okay|ok|alright|all right|fine|good|great|very good|nice|cool|perfect|I see) [izwi]",
            "(okay|ok|all right|oh), (fine|good|great|very good|nice|cool|perfect|I see)",
            "(that is|that's) (fine|good|great|very good|nice|cool|perfect|all right)",
        ),
        "Is there anything else?",
    ),
    (
        (
            "[please] (stop|be quiet|quiet|silence|never mind|forget it|cancel) [now] [izwi]",
            "(okay|oh), (stop|be quiet|quiet|silence|never mind|forget it|cancel) [now]",
            "(stop|cancel|forget) (it|that|this) [now] [izwi]",
        ),
        "All right.",
    ),
    (
        (
            "(can you|do you) hear me [now|well] [izwi]",
            "are you [still] (there|listening) [now] [izwi]",
            "(hello|hi|hey), are you [still] (there|listening)",
            "(hello|hi|hey), (can you|do you) hear me",
        ),
        "Yes, I can hear you.",
    ),
    (
        (
            "[I am|I'm|oh] [so|very] sorry [izwi|about that|for that]",
            "[oh] (excuse|pardon) me [izwi|for that]",
            "[oh] [I beg your] pardon [izwi]",
        ),
        "No problem. How can I help you?",
    ),
    (
        (
            "(yes|yeah|yes please|sure|no|nope|no thanks|no thank you) [izwi|my friend]",
            "(oh|well) (yes|yeah|sure|no|nope)",
            "(yes|yeah|sure), (yes|yeah|sure|of course)",
            "(no|nope), (no|nope|of course not)",
            "(of course|of course not) [izwi]",
        ),
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
    """Draw one greeting, or one question about the assistant."""
    patterns, answer = draw.choice(_GREETINGS)
    # closed, because "okay, thanks" could be "okay" with a polite word, or thanks
    return [Turn(draw.ask(patterns, closed=True), answer)]


def unknown(draw: Draw) -> list[Turn]:
    """Draw one question from outside the closed world."""
    word, other = (draw.choice(WORDS) for _ in range(2))
    name, strange = draw.choice(NAMES), invented(draw).capitalize()
    while any(strange in known for known in FACTS.values()):
        strange = invented(draw).capitalize()
    asked = draw.ask(_UNKNOWN, word=word, word2=other, name=name, invented=strange)
    return [Turn(asked, UNKNOWN)]
