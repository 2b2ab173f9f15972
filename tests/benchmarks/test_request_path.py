"""What counts as a form of a request, when the modules that it passes are counted."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.serving.request_path import (
    CORE,
    TEXT,
    RequestPath,
    contains,
    integers,
    libraries_as_one,
)
from izwi.inputs.speech import SpeechInput
from izwi_api.schemas.speech import SpeechBody

SPEECH_INPUT = "izwi.inputs.speech.SpeechInput"


def forms_of(value: object) -> list[str]:
    return RequestPath(CORE)._forms_of(value, 5)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one], lambda one: {"a": (one,)}])
def test_value_that_holds_the_text_is_a_form(wrap) -> None:
    assert forms_of(wrap(SpeechInput(TEXT))) == [SPEECH_INPUT]
    assert forms_of(wrap(SpeechInput("something else"))) == []


def test_body_of_the_route_is_a_form() -> None:
    body = SpeechBody(model="m", input=TEXT, voice="amber")
    assert forms_of(body) == [f"{SpeechBody.__module__}.SpeechBody"]


def test_ids_count_wherever_they_stand_in_a_sequence() -> None:
    assert contains(integers(np.array([9, 1, 2, 3, 9])), (1, 2, 3))
    assert not contains(integers([1, 2, 9, 3]), (1, 2, 3))
    assert integers([1.0, 2]) == integers("12") == ()


def test_nothing_is_counted_before_a_route_is_called() -> None:
    path = RequestPath(CORE)
    path.is_armed = True
    sys.setprofile(path)
    try:
        SpeechInput(TEXT)
        integers([1, 2])
    finally:
        sys.setprofile(None)
    assert not path.modules
    assert not path.forms


def test_modules_of_a_library_behind_one_function_count_once() -> None:
    modules = ["izwi_models.english.text", "izwi_models.english.units", "izwi.engine.engine"]
    assert libraries_as_one(modules) == {"izwi_models.english", "izwi.engine.engine"}
