"""Outcomes of openai-python's tests are compared by status, code and parameter, not by wording."""

from __future__ import annotations

import pytest

from tests.clients.openai_suite import Outcome, pinned_version

VOICES = "tests/api_resources/audio/test_voices.py::TestVoices::test_method_create"
DESIGNED = f"{VOICES}_overload_2[strict]"


def outcome(test=DESIGNED, ended="failed", error="400 invalid_request type", message=""):
    return Outcome(test, ended, error, message, num_sent=1, seconds=0.1)


@pytest.mark.parametrize("message", ["no model makes a voice", "worded in another way"])
def test_a_message_with_other_details_is_the_same_outcome(message):
    assert outcome(message=message).is_as_expected


@pytest.mark.parametrize(
    "changed",
    [
        {"error": "400 invalid_request name"},  # refused for another key
        {"error": "500 None type"},
        {"error": "400 invalid_request type_of_sound"},
        {"ended": "passed", "error": ""},  # can pass now, so the list is out of date
        {"test": f"{VOICES}_overload_1[strict]"},  # is not in the list
        {"ended": "skipped", "error": "", "message": "another reason"},
    ],
)
def test_another_result_is_another_outcome(changed):
    assert not outcome(**changed).is_as_expected


def test_expected_passes_and_skips_are_accepted():
    assert outcome(f"{VOICES}_overload_1[strict]", "passed", "").is_as_expected
    assert outcome(ended="skipped", message="aiohttp client is not compatible").is_as_expected


def test_the_suite_has_the_pinned_version_of_the_sdk():
    assert pinned_version("openai-agents==0.24.0\nopenai==3.54.0\nzstd==1\n") == "3.54.0"
    with pytest.raises(ValueError, match="unpack"):
        pinned_version("openai>=3\n")
