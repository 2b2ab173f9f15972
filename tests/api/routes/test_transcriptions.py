"""POST /v1/audio/transcriptions: answers in every format, streaming, form spellings."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np
import pytest

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.services.transcription import transcribe
from tests.api.conftest import FakeTranscription

URL = "/v1/audio/transcriptions"


def write(client, content, data=None, **fields):
    form = {"model": "org/asr"} | (data or {}) | fields
    return client.post(URL, data=form, files={"file": ("../../a.wav", content)})


def test_json(client, tone_wav):
    answer = write(client, tone_wav(3.0), response_format="json")
    assert answer.json() == {
        "text": "word word word",
        "usage": {"type": "tokens", "input_tokens": 7, "output_tokens": 22, "total_tokens": 29},
    }


@pytest.mark.parametrize("kind", ["json", "text", "vtt", "stream"])
def test_fields_that_a_model_without_a_context_ignores_are_named(
    client, tone_wav, kind, monkeypatch
):
    fields = {"response_format": kind, "prompt": "before", "keywords[]": ["Izwi"]}
    if kind == "stream":
        fields |= {"response_format": "verbose_json", "stream": "true"}
    assert "x-izwi-ignored" not in write(client, tone_wav(), **fields).headers
    monkeypatch.setattr(FakeTranscription, "follows_context", False)
    assert write(client, tone_wav(), **fields).headers["x-izwi-ignored"] == "prompt, keywords"
    fields["prompt"] = " "
    assert write(client, tone_wav(), **fields).headers["x-izwi-ignored"] == "keywords"
    del fields["prompt"], fields["keywords[]"]
    assert "x-izwi-ignored" not in write(client, tone_wav(), **fields).headers


def test_text_srt_and_vtt(client, tone_wav):
    audio = tone_wav(11.0)
    answer = write(client, audio, response_format="text")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == " ".join(["word"] * 11)
    srt = write(client, audio, response_format="srt").text
    # no cue is longer than seven seconds, and no piece of the audio shares one with the next
    times = re.findall(r"(?m)^(\S+) --> (\S+)$", srt)
    starts = ["00:00:00,000", "00:00:07,000", "00:00:10,000", "00:00:11,000"]
    assert times == list(pairwise(starts))
    assert srt.endswith("\n\n3\n00:00:10,000 --> 00:00:11,000\nword\n\n")
    vtt = write(client, audio, response_format="vtt", prompt="a --> b").text
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:0")
    assert vtt.count("-->") == len(re.findall(r"(?m)^\d\S+ --> \S+$", vtt))


@pytest.mark.parametrize("stream", ["false", "true"])
def test_subtitles_beside_the_text(client, tone_wav, stream):
    fields = {"timestamp_granularities[]": "cue", "response_format": "verbose_json"}
    answer = write(client, tone_wav(11.0), stream=stream, **fields)
    last = json.loads(answer.text.rpartition("data: ")[2]) if stream == "true" else answer.json()
    assert last["cues"] == [
        {"start": 0.0, "end": 7.0, "text": " ".join(["word"] * 7)},
        {"start": 7.0, "end": 10.0, "text": "word word word"},
        {"start": 10.0, "end": 11.0, "text": "word"},
    ]
    assert "words" not in last


def test_tokens_may_be_bounded(client, tone_wav):
    answer = write(client, tone_wav(5.0), max_new_tokens="12").json()
    assert answer["text"] == "word"
    for value in ("0", "-1", "many", "1.5", "99999999"):
        refused = write(client, tone_wav(1.0), max_new_tokens=value)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_new_tokens")


def test_verbose_json(client, tone_wav):
    answer = write(
        client,
        tone_wav(12.0),
        data={"response_format": "verbose_json", "timestamp_granularities[]": ["segment"]},
    ).json()
    assert (answer["language"], answer["duration"]) == ("english", 12.0)
    assert [(s["start"], s["end"]) for s in answer["segments"]] == [(0.0, 10.0), (10.0, 12.0)]
    assert {"id", "seek", "tokens", "temperature", "avg_logprob", "no_speech_prob"} <= set(
        answer["segments"][0]
    )


@pytest.mark.parametrize("fields", [{}, {"language": "en"}])
def test_stream_deltas_join_to_the_text(client, server, tone_wav, fields):
    server.engine.step_s = 0.005
    answer = write(client, tone_wav(12.0), stream="true", **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    deltas = [e["delta"] for e in events if e["type"] == "transcript.text.delta"]
    assert len(deltas) > 3
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == "".join(deltas) == " ".join(["word"] * 12)
    assert events[-1]["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("interval_s", [0.0, 0.05, 1e9])
def test_a_stream_tells_segments_as_they_end_and_all_in_the_end(
    client, server, tone_wav, monkeypatch, interval_s
):
    """Any number of deltas per piece: with 0 the whole text arrives at its end."""
    monkeypatch.setattr(transcribe, "_DELTA_INTERVAL_S", interval_s)
    server.engine.step_s = 0.005
    audio = tone_wav(22.0)
    answer = write(client, audio, stream="true", response_format="verbose_json")
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    kinds = [event["type"].removeprefix("transcript.text.") for event in events]
    ends = [place for place, kind in enumerate(kinds) if kind == "segment"]
    assert [(events[place]["start"], events[place]["end"]) for place in ends] == [
        (0.0, 10.0),
        (10.0, 20.0),
        (20.0, 22.0),
    ]
    assert [events[place]["id"] for place in ends] == ["seg_0", "seg_1", "seg_2"]
    assert all(events[place]["duration"] == 22.0 for place in ends)
    for number, place in enumerate(ends):  # each is sent before the text of the next
        sent_text = "".join(event["delta"] for event in events[:place] if "delta" in event)
        assert sent_text == " ".join(events[end]["text"] for end in ends[: number + 1])
    assert kinds[-1] == "done"
    whole = write(client, audio, response_format="verbose_json").json()
    assert {key: events[-1][key] for key in whole if key != "usage"} == {
        key: value for key, value in whole.items() if key != "usage"
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"chunking_strategy": "auto"},
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "0.4"},
        {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 300}'},
        {"language": "en", "temperature": "0.0", "stream": "false"},
        {"languages[]": ["en"], "keywords[]": ["Izwi", "Zulu"]},
        {"languages[]": ["en", "de"]},
        {"include[]": "logprobs", "response_format": "verbose_json"},
        {"keywords": "Izwi", "prompt": "before"},
        {"language": "", "prompt": ""},
    ],
)
def test_spellings_that_are_taken(client, tone_wav, fields):
    assert write(client, tone_wav(1.0), data=fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chunking_strategy": "never"}, "chunking_strategy"),
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "2"}, None),
        ({"chunking_strategy": "{"}, "chunking_strategy"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
        (
            {"timestamp_granularities[]": "word", "response_format": "verbose_json"},
            "timestamp_granularities",
        ),
        ({"include[]": "tokens"}, "include"),
        ({"include[]": "logprobs", "response_format": "text"}, "include"),
        ({"include[]": "logprobs", "response_format": "srt"}, "include"),
        ({"languages[]": ["en"] * 65}, "languages"),
        ({"temperature": "1.5"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"response_format": "xml"}, "response_format"),
        ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"color": "red"}, "color"),
        ({"model": "tts"}, "model"),
    ],
)
def test_spellings_that_are_refused(client, tone_wav, fields, param):
    answer = write(client, tone_wav(1.0), data=fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param or param is None


@pytest.mark.parametrize(
    ("sent", "forced"), [(["en"], "en"), (["en", "de"], None), (["de", "fr"], None)]
)
def test_candidates_of_languages(client, server, tone_wav, monkeypatch, sent, forced):
    """One is assumed; of several none is, and the response names the one heard, expected or not."""
    asked = []
    model = server.registry.models["org/asr"]
    prepare = model.prepare_transcription
    monkeypatch.setattr(
        model, "prepare_transcription", lambda *args: asked.append(args[2]) or prepare(*args)
    )
    answer = write(client, tone_wav(12.0), data={"languages[]": sent}).json()
    assert {ask.language for ask in asked} == {forced}
    assert answer["text"] == " ".join(["word"] * 12)
    assert answer["languages"] == [{"code": "en"}]
    streamed = write(client, tone_wav(2.0), data={"languages[]": sent, "stream": "true"})
    assert '"languages":[{"code":"en"}]' in streamed.text


def test_languages_are_returned_on_request(client, tone_wav):
    assert "languages" not in write(client, tone_wav(1.0), language="en").json()


def test_disconnect_ends_the_work(client, server, tone_wav):
    server.engine.step_s = 0.05
    num_aborted = len(server.engine.aborted)
    with client.stream(
        "POST",
        URL,
        data={"model": "org/asr", "stream": "true"},
        files={"file": ("a.wav", tone_wav(30.0))},
    ) as answer:
        next(answer.iter_raw())
    server.wait_for(lambda: not server.engine.live)
    assert len(server.engine.aborted) > num_aborted


def noise_wav(seconds, rate=16_000):
    noise = np.random.default_rng(3).normal(size=int(seconds * rate)).astype(np.float32) * 0.1
    pcm = to_s16le(noise)
    return wav_header(rate, len(pcm)) + pcm


def test_noise_has_no_words_and_the_model_is_not_asked(client, server):
    submitted = server.engine.num_submitted
    audio = noise_wav(12.0)
    assert write(client, audio).json()["text"] == ""
    answer = write(client, audio, response_format="verbose_json").json()
    assert answer["text"] == ""
    assert [s["no_speech_prob"] for s in answer["segments"]] == [1.0, 1.0]
    assert [(s["start"], s["end"]) for s in answer["segments"]] == [(0.0, 10.0), (10.0, 12.0)]
    assert write(client, audio, response_format="text").text == ""
    events = write(client, audio, stream="true").text
    assert json.loads(events.strip().split("\n\n")[-1][6:])["text"] == ""
    assert server.engine.num_submitted == submitted


def test_only_pieces_with_speech_are_transcribed(client, server, tone_wav):
    header = len(wav_header(16_000, 0))
    audio = noise_wav(10.0) + tone_wav(4.0)[header:]
    pcm = audio[header:]
    answer = write(
        client, wav_header(16_000, len(pcm)) + pcm, response_format="verbose_json"
    ).json()
    first, second = answer["segments"]
    assert (first["text"], first["no_speech_prob"]) == ("", 1.0)
    assert second["text"] == answer["text"] == "word word word word"
    assert second["no_speech_prob"] < 1.0


def test_vad_filter_false_asks_the_model_in_any_case(client):
    answer = write(client, noise_wav(3.0), vad_filter="false", response_format="verbose_json")
    assert answer.json()["text"] == "word word word"
    assert answer.json()["segments"][0]["no_speech_prob"] == 0.0
    refused = write(client, noise_wav(3.0), vad_filter="maybe")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "vad_filter")


def test_segments_by_speaker(client, tone_wav):
    answer = write(client, tone_wav(3.0), response_format="diarized_json").json()
    assert answer == {
        "task": "transcribe",
        "duration": 3.0,
        "text": "word word word",
        "segments": [
            {
                "type": "transcript.text.segment",
                "id": "seg_0",
                "start": 0.0,
                "end": 3.0,
                "text": "word word word",
                "speaker": "A",
            }
        ],
        "usage": {"type": "duration", "seconds": 3.0},
    }


def test_names_in_subtitles_and_text(client, tone_wav):
    def written(kind):
        return write(client, tone_wav(3.0), response_format=kind, speakers="true").text

    assert written("srt").endswith("\nA: word word word\n\n")
    assert written("vtt").endswith("\n<v A>word word word\n\n")
    assert written("text") == "A: word word word"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"known_speaker_names[]": "ann"}, "known_speaker_references"),
        ({"known_speaker_names[]": ["a"] * 5}, "known_speaker_names"),
        (
            {"known_speaker_names[]": "a", "known_speaker_references[]": "data:text/html,x"},
            "known_speaker_references",
        ),
        ({"response_format": "json", "speakers": "true"}, "speakers"),
        ({"include[]": "logprobs"}, "include"),
        ({"speaker_threshold": "2"}, "speaker_threshold"),
    ],
)
def test_fields_of_speakers_that_are_refused(client, tone_wav, fields, param):
    data = {"response_format": "diarized_json"} | fields
    answer = write(client, tone_wav(1.0), data=data)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
