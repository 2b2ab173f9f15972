"""Timers and lights, controlled by function calls with a fixed schema."""

from __future__ import annotations

from typing import Any

from izwi_models.tiny.recipes.chat.turns import Call, Turn
from izwi_models.tiny.recipes.chat.wording import Draw, say_number

ROOMS = ("kitchen", "bedroom", "bathroom", "living room", "office", "garage", "hall", "garden")
NO_TIMER = "I cannot set timers here."
NO_LIGHT = "I cannot switch lights here."


def _function(
    name: str, description: str, required: list[str], **properties: Any
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS: dict[str, dict[str, Any]] = {
    "set_timer": _function(
        "set_timer",
        "Start a timer.",
        ["seconds"],
        seconds={"type": "integer", "minimum": 1},
        label={"type": "string"},
    ),
    "cancel_timer": _function("cancel_timer", "Stop the running timer.", []),
    "set_light": _function(
        "set_light",
        "Switch the light of a room.",
        ["room", "on"],
        room={"type": "string", "enum": list(ROOMS)},
        on={"type": "boolean"},
        brightness={"type": "integer", "minimum": 1, "maximum": 100},
    ),
}

_CAN = "[can you|could you|will you|please|I want you to|I need you to]"
_TIMER = (
    f"{_CAN} (set|start|make|begin) (a|the) timer (for|of) {{time}}",
    f"{_CAN} (set|start) a {{adjective}} timer",
    "timer for {time}",
    "{time} timer",
    f"{_CAN} (wake|call|remind) me in {{time}}",
    f"{_CAN} (count down|time) {{time}}",
    "(I need|I want|give me) a timer (for|of) {time}",
)
_LABELLED = (
    f"{_CAN} (set|start) (a|the) timer (for|of) {{time}} (for the|called|named) {{label}}",
    f"{_CAN} (set|start) (a|the) {{label}} timer (for|of) {{time}}",
)
_CANCEL = (
    f"{_CAN} (cancel|stop|end|delete|switch off|turn off) the timer",
    "(cancel|stop|end) [my|the] timer",
    "I do not need the timer [any more|anymore]",
    "no more timer",
)
_ON = (
    f"{_CAN} (turn|switch|put) on the (light|lights|lamp) in the {{room}}",
    f"{_CAN} (turn|switch|put) the (light|lights|lamp) in the {{room}} on",
    f"{_CAN} (turn|switch) on the {{room}} (light|lights|lamp)",
    f"{_CAN} (turn|switch) the {{room}} (light|lights|lamp) on",
    "{room} (light|lights) on",
    "light[s] on in the {room}",
    "(I need|give me|let there be) light in the {room}",
    "it is [too] dark in the {room}",
)
_OFF = (
    f"{_CAN} (turn|switch) off the (light|lights|lamp) in the {{room}}",
    f"{_CAN} (turn|switch) the (light|lights|lamp) in the {{room}} off",
    f"{_CAN} (turn|switch) off the {{room}} (light|lights|lamp)",
    f"{_CAN} (turn|switch) the {{room}} (light|lights|lamp) off",
    "{room} (light|lights) off",
    "light[s] (off|out) in the {room}",
    "(I need|I want) no [more] light in the {room}",
)
_BRIGHTNESS = (
    f"{_CAN} (set|dim|turn|change) the (light|lights|lamp) in the {{room}} to {{percent}} percent",
    f"{_CAN} (set|dim|turn|change) the {{room}} (light|lights|lamp) to {{percent}} percent",
    "{room} (light|lights) (at|to) {percent} percent",
)
_ROOM_AGAIN = ("and [in] the {room}", "(what about|and also|now) the {room}", "the {room} too")
_BACK_OFF = (
    "and [now] off again",
    "and turn it off again",
    "now turn it off",
    "switch it off again",
)
_LABELS = ("eggs", "pasta", "tea", "pizza", "laundry", "rice", "bread", "break", "workout", "cake")


def devices(draw: Draw) -> list[Turn]:
    """Draw one command, sometimes followed by another."""
    return draw.choice((_timer, _timer, _cancelling, _light, _light, _dimmed))(draw)


def duration(draw: Draw) -> tuple[int, str, str]:
    """Draw a duration: its seconds, its wording in the question, and that in the answer."""
    kind = draw.random.randrange(6)

    def amount(number: int, unit: str) -> tuple[str, str]:
        shown = f"{number} {unit}" + "s" * (number != 1)
        said = f"{say_number(number)} {unit}" + "s" * (number != 1)
        return (said if draw.spoken else shown), shown

    def two(first: int, one: str, second: int, other: str) -> tuple[str, str]:
        a, b = amount(first, one), amount(second, other)
        return f"{a[0]} and {b[0]}", f"{a[1]} and {b[1]}"

    if kind < 3:
        minutes = draw.values("minutes", lambda: draw.number(1, 90))
        return minutes * 60, *amount(minutes, "minute")
    if kind == 3:
        seconds = draw.values("seconds", lambda: draw.number(1, 120))
        return seconds, *amount(seconds, "second")
    if kind == 4:
        hours = draw.random.randint(1, 12)
        if draw.random.random() < 0.5:
            return hours * 3600, *amount(hours, "hour")
        minutes = draw.random.randrange(5, 60, 5)
        return hours * 3600 + minutes * 60, *two(hours, "hour", minutes, "minute")
    minutes, seconds = draw.random.randint(1, 20), draw.random.randrange(5, 60, 5)
    return minutes * 60 + seconds, *two(minutes, "minute", seconds, "second")


def _timer(draw: Draw) -> list[Turn]:
    seconds, asked, shown = duration(draw)
    arguments: dict[str, object] = {"seconds": seconds}
    if draw.random.random() < 0.3:
        label = draw.choice(_LABELS)
        arguments["label"] = label
        user = draw.ask(_LABELLED, time=asked, label=label)
        done = f"The {label} timer is set for {shown}."
    else:
        adjective = (
            asked.replace("minutes", "minute").replace("hours", "hour").replace("seconds", "second")
        )
        user = draw.ask(_TIMER, time=asked, adjective=adjective)
        done = f"The timer is set for {shown}."
    turns = [_done(user, Call("set_timer", arguments), done, NO_TIMER)]
    if draw.random.random() < 0.2:
        turns += _cancelling(draw)
    return turns


def _cancelling(draw: Draw) -> list[Turn]:
    return [_done(draw.ask(_CANCEL), Call("cancel_timer", {}), "The timer is stopped.", NO_TIMER)]


def _light(draw: Draw) -> list[Turn]:
    on = draw.random.random() < 0.5
    room = draw.choice(ROOMS)
    turns = [_switched(draw.ask(_ON if on else _OFF, room=room), room, on)]
    chance = draw.random.random()
    if chance < 0.2:
        room = draw.choice(ROOMS)
        turns.append(_switched(draw.ask(_ROOM_AGAIN, room=room), room, on))
    elif chance < 0.3 and on:
        turns.append(_switched(draw.ask(_BACK_OFF), room, False))
    return turns


def _dimmed(draw: Draw) -> list[Turn]:
    room = draw.choice(ROOMS)
    percent = draw.values("percent", lambda: draw.random.randint(1, 100))
    asked = draw.ask(_BRIGHTNESS, room=room, percent=percent)
    call = Call("set_light", {"room": room, "on": True, "brightness": percent})
    return [_done(asked, call, f"The light in the {room} is at {percent} percent.", NO_LIGHT)]


def _switched(user: str, room: str, on: bool) -> Turn:
    call = Call("set_light", {"room": room, "on": on})
    return _done(user, call, f"The light in the {room} is {'on' if on else 'off'}.", NO_LIGHT)


def _done(user: str, call: Call, answer: str, refused: str) -> Turn:
    return Turn(user, answer, (call,), ({"ok": True},), refused)
