"""The protocol's names and keys, compared with the types of the openai package."""

from __future__ import annotations

import base64
from typing import Any, get_args

import msgspec
import pytest
from openai.types.realtime import RealtimeClientEvent

from izwi.errors import InvalidRequest, TooLarge
from izwi_api.realtime.protocol import client_events
from izwi_api.realtime.protocol.client_events import (
    BadEvent,
    ClientEvent,
    ResponseOptions,
    parse_event,
)
from izwi_api.realtime.protocol.settings import (
    RealtimeSettings,
    TranscriptionSettings,
    as_json,
    detection_of,
    updated,
)
from izwi_api.realtime.turns.rules import SemanticVad, ServerVad


def members(union: Any) -> tuple[Any, ...]:
    return get_args(get_args(union)[0]) if get_args(union)[0] is not None else ()


THEIRS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in members(RealtimeClientEvent)
}
OURS = {kind.__struct_config__.tag: kind for kind in get_args(ClientEvent)}


def test_every_client_event_of_the_sdk_is_known():
    assert len(THEIRS) == 11
    assert OURS.keys() == THEIRS.keys()


@pytest.mark.parametrize("name", THEIRS)
def test_each_event_has_the_sdks_fields(name):
    assert {*OURS[name].__struct_fields__, "type"} == set(THEIRS[name].model_fields)


def test_response_options_are_those_of_the_sdk():
    from openai.types.realtime import RealtimeResponseCreateParams

    assert set(ResponseOptions.__struct_fields__) == set(RealtimeResponseCreateParams.model_fields)


def keys_of(value: Any, at: str = "") -> set[str]:
    if not isinstance(value, dict):
        return set()
    return {f"{at}{key}" for key in value} | {
        name for key, inner in value.items() for name in keys_of(inner, f"{at}{key}.")
    }


def test_the_session_object_is_that_of_the_sdk():
    from openai.types.realtime import RealtimeSessionCreateRequest

    theirs = set(RealtimeSessionCreateRequest.model_fields)
    ours = set(as_json(RealtimeSettings(model="m")))
    assert theirs <= ours
    assert ours - theirs == {"id", "object", "expires_at"}


@pytest.mark.parametrize(
    ("text", "param", "event_id"),
    [
        (None, None, None),
        ("", None, None),
        ("{", None, None),
        ("[]", None, None),
        ("5", None, None),
        ("NaN", None, None),
        ('{"event_id": "e"}', "type", "e"),
        ('{"type": "nope", "event_id": "e"}', "type", "e"),
        ('{"type": 5}', "type", None),
        ('{"type": "input_audio_buffer.append", "event_id": "e"}', "audio", "e"),
        ('{"type": "input_audio_buffer.append", "audio": 5}', "audio", None),
        ('{"type": "input_audio_buffer.append", "audio": "%%%"}', "audio", None),
        ('{"type": "input_audio_buffer.commit", "extra": 1}', "extra", None),
        ('{"type": "session.update", "session": []}', "session", None),
        ('{"type": "input_audio_buffer.commit", "event_id": 5}', "event_id", None),
        ("[" * 100_000, None, None),
        ('{"type": "response.create", "response": {"output_modalities": ["x"]}}',
         "response.output_modalities[0]", None),
    ],
)  # fmt: skip
def test_bad_events_are_rejected(text, param, event_id):
    with pytest.raises(BadEvent) as refused:
        parse_event(text)
    assert (refused.value.param, refused.value.event_id) == (param, event_id)


def test_an_append_may_have_15_mib_and_not_more():
    def append(size: int) -> str:
        audio = base64.b64encode(bytes(size)).decode()
        return f'{{"type": "input_audio_buffer.append", "audio": "{audio}"}}'

    event = parse_event(append(15 << 20))
    assert isinstance(event, client_events.InputAudioAppend)
    assert len(event.audio) == 15 << 20
    with pytest.raises(TooLarge):
        parse_event(append((15 << 20) + 1))


BEGIN = RealtimeSettings(id="sess_1", model="chat")


def test_an_update_merges_its_values():
    changed = updated(BEGIN, {"audio": {"input": {"turn_detection": {"threshold": 0.8}}}})
    assert detection_of(changed) == ServerVad(threshold=0.8)
    changed = updated(changed, {"audio": {"output": {"voice": {"id": "amber"}, "speed": 1.5}}})
    assert detection_of(changed) == ServerVad(threshold=0.8)
    assert as_json(changed)["audio"]["output"]["voice"] == "amber"
    changed = updated(changed, {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    assert detection_of(changed) == SemanticVad()
    changed = updated(changed, {"audio": {"input": {"turn_detection": None}}})
    assert detection_of(changed) is None
    assert as_json(changed)["audio"]["output"]["speed"] == 1.5


def test_null_and_empty_values_clear():
    tool = {"type": "function", "name": "f", "description": "", "parameters": {"type": "object"}}
    full = updated(
        BEGIN,
        {
            "instructions": "Be short.",
            "tools": [tool],
            "audio": {"input": {"transcription": {"model": "a"}, "noise_reduction": None}},
        },
    )
    changes = {"instructions": "", "tools": [], "audio": {"input": {"transcription": None}}}
    assert updated(full, changes) == BEGIN
    assert updated(full, {**changes, "instructions": None, "tools": None}) == BEGIN


def test_transcription_settings_have_only_the_keys_that_were_set():
    changed = updated(BEGIN, {"audio": {"input": {"transcription": {"model": "a"}}}})
    assert as_json(changed)["audio"]["input"]["transcription"] == {"model": "a"}
    more = {"language": "en", "languages": ["en", "de"], "keywords": None, "prompt": "Trains."}
    changed = updated(changed, {"audio": {"input": {"transcription": more}}})
    assert as_json(changed)["audio"]["input"]["transcription"] == {
        "model": "a", "language": "en", "languages": ["en", "de"], "prompt": "Trains."
    }  # fmt: skip


def test_an_update_ignores_ids_and_the_model():
    changes = {"type": "realtime", "id": "x", "model": "other", "expires_at": 5, "object": "y"}
    assert updated(BEGIN, changes) == BEGIN


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"foo": 1}, "session.foo"),
        ({"type": "transcription"}, "session.type"),
        ({"output_modalities": ["text", "audio"]}, "session.output_modalities"),
        ({"output_modalities": []}, "session.output_modalities"),
        ({"audio": 5}, "session.audio"),
        ({"audio": {"output": {"speed": 1.6}}}, "session.audio.output.speed"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}},
         "session.audio.input.format.rate"),
        ({"audio": {"input": {"turn_detection": {"type": "x"}}}},
         "session.audio.input.turn_detection.type"),
        ({"max_output_tokens": 5000}, "session.max_output_tokens"),
    ],
)  # fmt: skip
def test_a_wrong_value_changes_nothing(changes, param):
    before = as_json(BEGIN)
    with pytest.raises(InvalidRequest) as refused:
        updated(BEGIN, {"instructions": "new"} | changes)
    assert refused.value.param == param
    assert as_json(BEGIN) == before


def test_a_transcription_session_creates_no_responses():
    session = TranscriptionSettings()
    assert detection_of(session) == ServerVad(create_response=False, interrupt_response=False)
    with pytest.raises(InvalidRequest):
        updated(session, {"instructions": "x"})
    assert "output" not in msgspec.to_builtins(session)["audio"]


def speakers(**fields):
    transcription = {"speakers": True, **fields}
    changes = {"audio": {"input": {"transcription": transcription}}}
    return updated(TranscriptionSettings(), changes).audio.input.transcription


def test_speakers_are_named_only_when_asked():
    assert speakers(speakers=False).speaker_setting is None
    assert speakers(speaker_threshold=0.3).speaker_setting.threshold == 0.3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"known_speaker_names": ["ann"]}, "known_speaker_references"),
        (
            {"known_speaker_names": ["a", "a"], "known_speaker_references": ["x", "y"]},
            "known_speaker_names",
        ),
        (
            {
                "known_speaker_names": ["a"],
                "known_speaker_references": ["x"],
                "speakers": False,
            },
            "speakers",
        ),
    ],
)
def test_known_speakers_are_pairs(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        _ = speakers(**fields).speaker_setting
    assert refused.value.param == param


@pytest.mark.parametrize("fields", [{"known_speaker_names": ["x"] * 5}, {"speaker_threshold": 2}])
def test_wrong_values_of_speakers_are_refused(fields):
    with pytest.raises(InvalidRequest):
        speakers(**fields)
