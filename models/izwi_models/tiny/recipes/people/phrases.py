"""Sentences of telephones, services, instructions, news and talk, from a grammar.

The everyday text of `text.py` hardly has the words that recorded people say to callers, nor spoken
questions. Nothing here is a transcript of a recording.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path

from izwi_models.tiny.recipes.chat.conversations import draw_trained
from izwi_models.tiny.recipes.chat.wording import Draw
from izwi_models.tiny.recipes.templates import spell

LONGEST = 110  # characters
_SLOTS = {
    "who": "the caller|the operator|an agent|the next agent|your party|the other person|"
    "a member of our staff|the administrator|the support team|our sales department|"
    "the front desk|a technician|the manager|customer service|the person at this extension|"
    "the moderator|the host|everyone",
    "box": "mailbox|voicemail|message|greeting|recording|inbox|folder|call|conference|password|"
    "pin|extension|account|number|name|announcement|reply|line|channel|queue|menu|directory",
    "boxes": "messages|calls|callers|recordings|lines|agents|numbers|names|greetings|extensions|"
    "channels|members|participants|minutes|seconds|tries|attempts|folders|options|digits|letters",
    "key": "star|pound|hash|zero|one|two|three|four|five|six|seven|eight|nine",
    "keyname": "the {key} key|{key}|any key|the star key|the pound key|the {key} button",
    "press": "press {keyname}|please press {keyname}|hit {keyname}|dial {key}|push {keyname}",
    "followed": "followed by the {key} key|and then press {key}|when you are done|now|"
    "after the tone|after the beep|or hold the line|or stay on the line|at any time|again|first",
    "enter": "enter|dial|type|say|record|confirm|change|repeat|check|choose|select|key in|provide|"
    "set",
    "do": "hear this again|listen to your {boxes}|leave a message|return to the main menu|"
    "speak with {who}|change your {box}|record your {box}|delete this {box}|save this {box}|"
    "forward the {box}|reach {who}|transfer the call|join the {box}|leave the {box}|"
    "mute or unmute yourself|lock the {box}|unlock the {box}|cancel|continue|accept this {box}|"
    "reject this {box}|play the next message|play the previous message|skip to the end|"
    "go back to the start|lower the volume|raise the volume|erase and start over|"
    "review your {box}|send a reply|call the sender back|try another {box}|hang up|"
    "change options|exit this menu|use the company directory|call this number|hold on",
    "state": "busy|unavailable|not available|on the phone|away|out of order|full|empty|ready|"
    "disabled|enabled|activated|deactivated|invalid|incorrect|not valid|locked|open|closed|"
    "in use|not in service|disconnected|being transferred|being recorded|temporarily suspended|"
    "on hold|unknown|muted|restricted|forwarded|private|removed|added|saved|deleted|complete",
    "problem": "was not recognized|could not be completed|is not correct|did not match|"
    "has expired|is too short|is too long|was not found|has been changed|has been saved|"
    "has been deleted|has been sent|has been recorded|is {state}|is currently {state}|"
    "is now {state}|will be {state} soon|could not be reached|does not answer|"
    "cannot be used here|failed",
    "sorry": "sorry|I am sorry|we are sorry|we apologize|excuse me|unfortunately|please note",
    "thanks": "thank you|thank you for calling|thanks|thank you for holding|thank you for waiting|"
    "thank you for your patience|goodbye|welcome|welcome back|hello|good morning|please hold",
    "n": "{count}|two|three|several|no|many|a few|one hundred|twenty",
    "ordinal": "first|second|third|fourth|fifth|sixth|seventh|next|last|previous|final|new|old",
    "place": "the office|the building|the lobby|headquarters|the warehouse|the airport|"
    "the hospital|the station|the school|the city|the kitchen|the garden|the street|the market|"
    "the hotel|the library|the river|the mountains|the coast|the border|the north|the south|town",
    "person": "the president|the minister|a spokesman|the police|a witness|the mayor|a scientist|"
    "the teacher|my sister|my brother|our neighbour|the doctor|the driver|the captain|"
    "the committee|the government|the company|the court|the team|the coach|her father|his mother|"
    "an engineer|a student|the children|most people|nobody|everybody|someone|they|she|he|we|I",
    "said": "said|announced|reported|explained|confirmed|denied|warned|promised|believes|told us",
    "event": "the election|the storm|the meeting|the game|the accident|the fire|the strike|"
    "the trial|the concert|the flight|the exam|the wedding|the decision|the agreement|the report|"
    "the crisis",
    "when": "today|yesterday|tomorrow|last week|next month|this morning|on {day}|late on {day}|"
    "in {month}|at noon|at midnight|after lunch|before dinner|two days ago|later this year|soon",
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "month": "January|February|March|April|May|June|July|August|September|October|November|"
    "December",
    "happened": "was delayed|was cancelled|went well|began|ended|surprised everyone|"
    "changed nothing|cost too much|was a success|is still going on|made people angry|"
    "will be repeated|took hours",
    "want": "want to|would like to|need to|have to|am going to|am trying to|forgot to|hope to|"
    "cannot",
    "act": "book a table|buy a ticket|pay the bill|return this|open an account|see a doctor|"
    "find my keys|call my bank|cancel my order|change the date|learn to cook|fix the car|"
    "move the appointment|hear some music|turn off the lights|get some sleep|talk about it|"
    "walk the dog|wash the dishes|finish my homework|catch the bus|charge my phone|wait here",
    "opinion": "that is a great idea|I do not think so|it sounds good to me|you may be right|"
    "that makes sense|I have no idea|it does not matter|I am not sure about that|never mind|"
    "let me think about it|that would be wonderful|you must be joking|it is up to you|no way|"
    "I could not agree more|as far as I know|to be honest|by the way|of course you can|well",
    "ask": "could you|can you|would you please|will you|do you want to|are you able to|may I|"
    "should I|how do I|where can I|when can we|why did you|who is going to|is it possible to",
    "tool": "the screwdriver|the oven|the printer|the router|the battery|the cable|the filter|"
    "the lid|the handle|the switch|the screen|the engine|the valve|the sauce|the dough|the onions",
    "howto": "carefully remove|gently press|slowly turn|connect|disconnect|switch off|unplug|"
    "clean|rinse|heat|stir|chop|fold|tighten|loosen|replace|check|open|close|lift|hold down|"
    "insert",
    "until": "until it clicks|for {count} minutes|before you go on|with both hands|from the left|"
    "until the light turns green|as shown in the picture|with warm water|once a week|completely",
}
_PATTERNS = (
    *("To {do}, {press}.",) * 5,
    *("{press} to {do}.",) * 4,
    *("Please {enter} your {box} {followed}.",) * 4,
    "Please {enter} the {box} of {who}, {followed}.",
    "If you would like to {do}, {press}.",
    "If this is correct, {press}.",
    "If you know the extension of {who}, {enter} it {followed}.",
    *("The {box} you have entered {problem}.",) * 3,
    "{sorry}, the {box} {problem}.",
    "{sorry}, but {who} is {state}.",
    "{sorry}, I did not understand your {box}.",
    "{who} is {state}. Please try again later.",
    "{thanks}. {who} is {state}.",
    "{thanks}. Your {box} {problem}.",
    "Your call is important to us. Please stay on the line.",
    "You have {n} {ordinal} {boxes}.",
    "You have {n} new {boxes} and {n} old {boxes}.",
    "You are the {ordinal} caller in the queue.",
    "There are {n} {boxes} in the {box}.",
    "There are currently {n} other {boxes} in the {box}.",
    "The estimated waiting time is {count} minutes.",
    "Your {box} {problem}.",
    "This {box} is {state}.",
    "This {box} requires a {box}.",
    "{who} has joined the conference.",
    "{who} has left the {box}.",
    "You are now {state}.",
    "Please hold while we connect you to {who}.",
    "Please wait while I try to locate {who}.",
    "The {box} will be {state} in {count} seconds.",
    "At the tone, please {enter} your {box}.",
    "After the tone, say your name and the reason for your call.",
    "Message {count}, received {when} at {hour} {minute}.",
    "The time is {hour} {minute}, and today is {day}.",
    "Extension {digit} {digit} {digit} is {state}.",
    "The number you dialed, {digit} {digit} {digit}, {digit} {digit} {digit} {digit}, is {state}.",
    "{press} for {who}, or {press} for {who}.",
    "For {who}, {press}. For {who}, {press}.",
    "Please {enter} a {ordinal} {box}, or {press} to {do}.",
    *("{person} {said} that {event} {happened}.",) * 3,
    "{event} {happened} {when}.",
    "{when}, {person} went to {place}.",
    "{person} {said} on {day} that {count} people were at {place}.",
    "In {place}, {event} {happened} because of {event}.",
    "{person} will be at {place} {when}.",
    "I {want} {act} {when}.",
    "I {want} {act}, but {event} {happened}.",
    "{opinion}. I {want} {act}.",
    "{opinion}, and {person} said so, too.",
    "{ask} {act} {when}?",
    "{ask} {do}?",
    "{ask} tell me how {event} {happened}?",
    "Do you know whether {person} was at {place} {when}?",
    "What did {person} say about {event}?",
    "How long does it take to {act}?",
    "{howto} {tool} {until}.",
    "{howto} {tool}, and then {howto} {tool} {until}.",
    "First {howto} {tool}. Then {howto} {tool} {until}.",
    "Do not {howto} {tool} {until}.",
)


def phrase(generator: random.Random) -> str:
    """Draw one or two sentences of the grammar; they may be longer than `LONGEST`."""
    text = generator.choice(_PATTERNS)
    while found := re.search(r"\{(\w+)\}", text):
        text = text[: found.start()] + _fill(found[1], generator) + text[found.end() :]
    return re.sub(r"(^|[.?!] )([a-z])", lambda m: m[1] + m[2].upper(), text)


def _fill(slot: str, generator: random.Random) -> str:
    if slot == "count":
        return spell(generator.randint(0, generator.choice((12, 99, 999))))
    if slot == "hour":
        return spell(generator.randint(1, 12))
    if slot == "minute":
        return generator.choice(("o'clock", "a m", "p m", spell(generator.randint(10, 59))))
    if slot == "digit":
        return spell(generator.randrange(10))
    return generator.choice(_SLOTS[slot].split("|"))


def question(generator: random.Random) -> str:
    """Draw a question to izwi-tiny-chat, of the wordings and numbers that it is trained on."""
    while True:
        asked = generator.choice(draw_trained(Draw(generator, spoken=True)).turns).user
        if len(asked) <= LONGEST and re.fullmatch(r"[A-Za-z ,.'?!-]+", asked):
            return asked


def phrases(number: int, seed: int) -> list[str]:
    """Draw different sentences: three quarters of the grammar, a quarter questions.

    Args:
        number: How many.
        seed: Of the drawing.
    """
    generator = random.Random(seed)
    made: dict[str, None] = {}
    while len(made) < number:
        text = question(generator) if generator.random() < 0.25 else phrase(generator)
        if len(text) <= LONGEST:
            made[text] = None
    return list(made)


def main() -> None:
    """Mix phrases with a text's sentences for speaking; write others that nobody says."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("text", type=Path, help="train.txt of text.py")
    parser.add_argument("spoken", type=Path, help="output, one a line")
    parser.add_argument("unspoken", type=Path, help="output, one a line")
    parser.add_argument("--number", type=int, default=60_000, help="phrases")
    parser.add_argument("--unspoken-share", type=float, default=0.3, help="of the sentences")
    parser.add_argument("--seed", type=int, default=35)
    args = parser.parse_args()
    sentences = args.text.read_text("utf-8").splitlines()
    first = round(args.unspoken_share * len(sentences))
    spoken = sentences[first:] + phrases(args.number, args.seed)
    random.Random(args.seed).shuffle(spoken)
    args.spoken.write_text("\n".join(spoken) + "\n", "utf-8")
    args.unspoken.write_text("\n".join(sentences[:first]) + "\n", "utf-8")
    print(f"{len(spoken)} to speak, {first} that nobody says")


if __name__ == "__main__":
    main()
