"""A question whose answer was not heard is asked together with the next one."""

from __future__ import annotations

from izwi_api.realtime.protocol.items import Content, Item, chat_messages


def said(text, kind="input_audio"):
    return Item("message", role="user", content=[Content(kind, text)])


def answered(text, played_ms):
    content = Content("output_audio", text, audio_ms=1000.0, played_ms=played_ms)
    content.is_complete = True
    return Item("message", role="assistant", content=[content])


def roles(*items):
    return [(message.role.value, message.content) for message in chat_messages(items, "")]


def test_two_questions_are_one_message_if_no_answer_was_heard_between_them():
    both = ("user", "When does it leave?\nWhere is it?")
    assert roles(said("When does it leave?"), said("Where is it?")) == [both]
    silent = answered("At seven.", 0.0)
    assert roles(said("When does it leave?"), silent, said("Where is it?")) == [both]


def test_a_question_whose_answer_was_heard_stays_its_own():
    heard = answered("At seven.", 1000.0)
    assert len(roles(said("When?"), heard, said("Where?"))) == 3


def test_typed_messages_stay_their_own():
    assert len(roles(said("One", "input_text"), said("Two", "input_text"))) == 2
