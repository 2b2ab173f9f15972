"""Common sentences of assistants and their users, from a small grammar."""

from __future__ import annotations

import random

_BELOW_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_ONES = _BELOW_TWENTY.split()
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SLOTS = {
    "name": "Anna Peter Maria John Sarah David Emma Michael Laura Thomas Julia Robert Alice Daniel "
    "Kate Henry Lucy George Nina Paul Mark Helen James Mary Tom Jane Sam Ben",
    "thing": "book car house phone letter ticket table camera window garden coffee dinner movie "
    "report meeting project computer bicycle train message picture door lamp key bag box song",
    "place": "London Paris Berlin Tokyo Boston Chicago Rome Madrid Vienna Dublin Oslo Seattle",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November "
    "December",
    "colour": "red green blue yellow black white orange purple brown pink grey",
    "animal": "dog cat bird horse fox rabbit tiger elephant monkey sheep cow mouse",
    "room": "kitchen bedroom bathroom garage office hall garden",
    "device": "light radio heater fan television music lamp alarm",
    "weather": "sunny cloudy rainy windy cold warm foggy dry wet hot",
    "food": "pizza bread soup rice fish chicken salad cake cheese fruit sandwich apple",
    "time": "morning afternoon evening night week month year",
    "feeling": "happy sad tired hungry sorry ready busy late early fine",
    "digit": "zero one two three four five six seven eight nine",
}
_PATTERNS = (
    "The number is {number}.",
    "It costs {small} dollars.",
    "Call me at {digit} {digit} {digit} {digit} {digit} {digit} {digit}.",
    "The code is {digit} {digit} {digit} {digit}.",
    "The meeting is on {day} at {hour} {half}.",
    "What is {small} plus {small}?",
    "What is {small} times {small}?",
    "Today is {day}, {month} {small}.",
    "Hello, my name is {name}, and I live in {place}.",
    "Could you please send the {thing} to {name} by {day}?",
    "{name} bought a {colour} {thing} in {place}.",
    "The {colour} {animal} ran after the {colour} {animal}.",
    "Please turn on the {device} in the {room}.",
    "Please turn off the {device} in the {room}.",
    "Hello {name}, how are you today?",
    "Good {time}, {name}. It is nice to see you.",
    "Where is the {colour} {thing}?",
    "Set a timer for {small} minutes.",
    "Wake me up at {hour} {half} on {day}.",
    "The weather in {place} is {weather} today.",
    "It will be {weather} and {weather} in {place} on {day}.",
    "I would like {small} {food}s, please.",
    "Do we have any {food} left in the {room}?",
    "Thank you very much for the {thing}, {name}.",
    "I am {feeling}, but {name} is {feeling}.",
    "How far is it from {place} to {place}?",
    "My {thing} is in the {room} next to the {thing}.",
    "Remind me to call {name} in {small} minutes.",
    "There are {small} {animal}s and {small} {animal}s.",
    "I will see you on {day} {time}.",
    "Can you read the {thing} to me, please?",
    "The {thing} was {colour}, but now it is {colour}.",
    "She said that the {thing} is in the {room}.",
    "We have not seen {name} since last {time}.",
    "The temperature is {small} degrees this {time}.",
    "Yes, I think that is right.",
    "No, I do not want the {thing}.",
    "He was born in {month}, nineteen {tens}.",
    "The train to {place} leaves at {hour} {half}.",
    "I moved to {place} {small} years ago.",
)


def spell(number: int) -> str:
    """Return a number below a million in words."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + ("" if number % 10 == 0 else f" {_ONES[number % 10]}")
    if number < 1000:
        rest = "" if number % 100 == 0 else f" and {spell(number % 100)}"
        return f"{_ONES[number // 100]} hundred{rest}"
    rest = "" if number % 1000 == 0 else f" {spell(number % 1000)}"
    return f"{spell(number // 1000)} thousand{rest}"


def template_sentence(generator: random.Random) -> str:
    """Draw one sentence."""
    sentence = generator.choice(_PATTERNS)
    while "{" in sentence:
        slot = sentence[sentence.index("{") : sentence.index("}") + 1]
        sentence = sentence.replace(slot, _fill(slot[1:-1], generator), 1)
    return sentence[0].upper() + sentence[1:]


def _fill(slot: str, generator: random.Random) -> str:
    if slot == "number":
        return spell(generator.randrange(generator.choice((100, 1000, 10_000))))
    if slot == "small":
        return spell(generator.randint(2, 99))
    if slot == "hour":
        return spell(generator.randint(1, 12))
    if slot == "tens":
        return spell(generator.randint(20, 99))
    if slot == "half":
        return generator.choice(("thirty", "fifteen", "forty five", "o'clock"))
    return generator.choice(_SLOTS[slot].split())
