"""SSML: what the parser reads and refuses, and how a request with it sounds."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import InvalidRequest
from izwi_api.services.speech.spoken_text import Pause
from izwi_api.services.speech.ssml import MAX_DEPTH, VoicedText, parse_ssml

SPEECH = "/v1/audio/speech"
ASK = {"model": "tts", "voice": "Ann", "response_format": "pcm"}
RATE = 24_000
WORDS = st.text(st.sampled_from("ab é<>&'\"\n"), min_size=1, max_size=12)


def _fast(text, voice=None):
    return VoicedText(text, voice, 1.5)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        ("a\n  b", ["a b"]),
        ("a &lt;b&gt; &amp; &#233;<![CDATA[<c>]]><!-- no -->", ["a <b> & é<c>"]),
        ("a<break time='250ms'/>b", ["a", Pause(0.25), "b"]),
        ("a<break time='+1.5s' strength='weak'/>", ["a", Pause(1.5)]),
        ("<break/>a<break strength='x-strong'/>", [Pause(0.75), "a", Pause(1.25)]),
        ("a<break strength='none'/>b<break time='0s'/>c", ["a b c"]),
        ("<p>a<s>b</s>c</p>d", ["a", "b", "c", "d"]),
        ("<sub alias='World Wide Web'>WWW</sub>.", ["World Wide Web."]),
        ("<emphasis level='strong'>a</emphasis> b", ["a b"]),
        ("a <prosody pitch='+0%' volume='default'>b</prosody> c", ["a b c"]),
        ("a<prosody rate='+50%'>b<s>c</s></prosody>d", ["a", _fast("b"), _fast("c"), "d"]),
        ("<prosody rate='x-fast'><voice name='x'>b</voice></prosody>", [_fast("b", "x")]),
        (
            "<voice name='x'>a<prosody rate='150%'>b</prosody></voice>",
            [("a", "x"), _fast("b", "x")],
        ),
        ("a<voice name='x'>b<s>c</s></voice>d", ["a", ("b", "x"), ("c", "x"), "d"]),
        ("<voice name='x'><voice name='y'>a</voice>b</voice>c", [("a", "y"), ("b", "x"), "c"]),
    ],
)
def test_a_document_is_texts_and_pauses(content, expected):
    texts = {str: VoicedText, tuple: lambda each: VoicedText(*each)}
    texts |= dict.fromkeys((Pause, VoicedText), lambda each: each)
    assert parse_ssml(f"<speak>{content}</speak>") == [texts[type(e)](e) for e in expected]


@pytest.mark.parametrize(
    ("reading", "written", "said"),
    [
        ("characters", "BBc", "B B C"),
        ("characters", "a-12", "A, 1 2"),
        ("cardinal", "1984", "1,984"),
        ("cardinal", " -1,234 ", "-1,234"),
        ("ordinal", "21", "21st"),
        ("ordinal", "112", "112th"),
        ("digits", "07 12", "0 7 1 2"),
        ("telephone", "+44 (20) 79", "plus 4 4, 2 0, 7 9"),
        ("cardinal", "1.5", None),
        ("ordinal", "", None),
        ("digits", "1a", None),
        ("digits", "\u0661", None),
        ("telephone", "+-", None),
        ("characters", "--", None),
    ],
)
def test_say_as(reading, written, said):
    text = f"<speak><say-as interpret-as='{reading}'>{written}</say-as></speak>"
    if said is None:
        with pytest.raises(InvalidRequest, match=r"line 1, column 8: .* cannot be read as"):
            parse_ssml(text)
    else:
        assert parse_ssml(text) == [VoicedText(said)]


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("<speak>", 8, "no element found"),
        ("<speak>a & b</speak>", 11, "not well-formed"),
        ("<speak>é<foo/></speak>", 9, "<foo> is not supported"),
        (
            "<speak><phoneme ph='a'>a</phoneme></speak>",
            8,
            "<phoneme> is not supported: no model here reads phonemes",
        ),
        ("<speak><prosody rate='1'>a</prosody></speak>", 8, "rate is x-slow"),
        ("<speak><prosody rate='49%'>a</prosody></speak>", 8, "from 50% to 200%"),
        ("<speak><prosody rate='+101%'>a</prosody></speak>", 8, "from 50% to 200%"),
        ("<speak><prosody rate='-9999%'>a</prosody></speak>", 8, "from 50% to 200%"),
        ("<speak><prosody pitch='+2st'>a</prosody></speak>", 8, "changes its pitch"),
        ("<speak><prosody volume='loud'>a</prosody></speak>", 8, "changes its volume"),
        ("<speak><prosody><prosody>a</prosody></prosody></speak>", 17, "inside another"),
        ("<speak><prosody contour='a'>a</prosody></speak>", 8, "no attribute 'contour'"),
        ("<speak><p class='a'>a</p></speak>", 8, "no attribute 'class'"),
        ("<speak><speak/></speak>", 8, "not allowed in <speak>"),
        ("<speak><s><p>a</p></s></speak>", 11, "not allowed in <s>"),
        ("<speak><sub alias='a'><s/></sub></speak>", 23, "not allowed in <sub>"),
        ("<speak><sub>a</sub></speak>", 8, "needs the attribute 'alias'"),
        ("<speak><voice name=' '>a</voice></speak>", 8, "needs the attribute 'name'"),
        ("<speak><break>a</break></speak>", 8, "no text"),
        ("<speak><break time='5'/></speak>", 8, "time is like"),
        ("<speak><break time='11s'/></speak>", 8, "at most 10 s"),
        ("<speak><break strength='big'/></speak>", 8, "strength is one of"),
        ("<speak><emphasis level='big'>a</emphasis></speak>", 8, "level is one of"),
        ("<speak><say-as interpret-as='date'>1</say-as></speak>", 8, "interpret-as is one of"),
        ("<speak>&nbsp;</speak>", 8, "undefined entity"),
        ("<speak><?php ?></speak>", 8, "processing instruction"),
        ("<speak/><speak/>", 9, "junk after"),
        ("<speak>\0</speak>", 8, "not well-formed"),
        ("<!DOCTYPE s [<!ENTITY a 'b'>]><speak>&a;</speak>", None, "document type"),
        ("<p>a</p>", 1, "not allowed here"),
        ("<speak>\ud800</speak>", None, "surrogate"),
    ],
)
def test_anything_else_is_refused_with_its_place(text, column, why):
    with pytest.raises(InvalidRequest) as refused:
        parse_ssml(text)
    assert why in str(refused.value)
    assert refused.value.param == "input"
    assert column is None or f"line 1, column {column}:" in str(refused.value)


def test_depth_is_limited():
    def nested(depth):
        return "<speak>" + "<emphasis>" * depth + "a" + "</emphasis>" * depth + "</speak>"

    assert parse_ssml(nested(MAX_DEPTH - 1)) == [VoicedText("a")]
    with pytest.raises(InvalidRequest, match="may be open at a time"):
        parse_ssml(nested(MAX_DEPTH))


@given(st.lists(st.tuples(WORDS, st.sampled_from([None, "x", "y"]), st.integers(1, 9999))))
def test_what_is_written_is_read(parts):
    written, expected = "", []
    for text, voice, pause_ms in parts:
        inner = escape(text)
        written += inner if voice is None else f"<voice name={quoteattr(voice)}>{inner}</voice>"
        written += f"<break time='{pause_ms}ms'/>"
        if said := " ".join(text.split()):
            expected.append(VoicedText(said, voice))
        expected.append(Pause(pause_ms / 1000))
    assert parse_ssml(f"<speak>{written}</speak>") == expected


@given(st.text(st.sampled_from("<>/&;='\" abspeakvoicename![]CDT-?\0é"), max_size=60))
def test_any_text_is_read_or_refused(text):
    for document in (text, f"<speak>{text}</speak>", f"<speak{text}"):
        with suppress(InvalidRequest):
            parse_ssml(document)


# -- requests --------------------------------------------------------------------------------------
def say(client, **fields):
    return client.post(SPEECH, json=ASK | fields)


MIXED = (
    "\n<speak version='1.1'>one<break time='500ms'/><voice name='Bob'>two</voice>"
    "<break time='125ms'/></speak>"
)


def mixed_audio(client) -> bytes:
    one, two = say(client, input="one").content, say(client, input="two", voice="Bob").content
    assert two != say(client, input="two").content
    return one + bytes(2 * RATE // 2) + two + bytes(2 * RATE // 8)


def test_voices_and_breaks_are_in_their_places(client):
    answer = say(client, input=MIXED)
    assert answer.status_code == 200, answer.text
    assert answer.content == mixed_audio(client)


@pytest.mark.parametrize(("rate", "factor"), [("x-slow", 0.5), ("-20%", 0.8), ("200%", 2.0)])
def test_a_rate_stretches_its_text_alone(client, rate, factor):
    text = "two words and some more"
    document = f"<speak>one<prosody rate='{rate}'>{text}</prosody><break time='1s'/>one</speak>"
    heard = say(client, input=document).content
    one, plain = say(client, input="one").content, say(client, input=text).content
    assert heard[: len(one)] == heard[-len(one) :] == one, "what is around it is not changed"
    stretched = heard[len(one) : -len(one) - 2 * RATE]
    assert len(stretched) == pytest.approx(len(plain) / factor, abs=2 * RATE * 0.03)
    assert heard[-len(one) - 2 * RATE : -len(one)] == bytes(2 * RATE)
    hertz = [np.fft.rfft(np.frombuffer(pcm, np.int16)) for pcm in (plain, stretched)]
    peaks = [np.argmax(abs(each)) * RATE / (2 * len(each)) for each in hertz]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02), "the pitch stays"


def test_events_have_the_audio_and_the_usage_of_what_is_spoken(client):
    def events(**fields):
        lines = say(client, stream_format="sse", **fields).text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    ssml, one, two = events(input=MIXED), events(input="one"), events(input="two", voice="Bob")
    audio = [base64.b64decode(each["audio"]) for each in ssml if "audio" in each]
    assert b"".join(audio) == mixed_audio(client)
    assert len(audio) > 2
    for count in ("input_tokens", "output_tokens"):
        apart = one[-1]["usage"][count] + two[-1]["usage"][count]
        assert ssml[-1]["usage"][count] == apart > 0


def test_a_batch_reads_ssml(client):
    batch = client.post(SPEECH + "/batch", json=ASK | {"items": [{"input": MIXED}]}).json()
    assert base64.b64decode(batch["results"][0]["audio_data"]) == mixed_audio(client)


def test_a_voice_of_the_request_is_needed_only_for_text_without_one(client):
    named = {"input": "<speak><voice name='Bob'>two</voice></speak>", "voice": None}
    assert say(client, **named).content == say(client, input="two", voice="Bob").content
    lacking = say(client, input="<speak>one</speak>", voice=None)
    assert (lacking.status_code, lacking.json()["error"]["param"]) == (400, "voice")


@pytest.mark.parametrize(
    "text", ["<speaker>hi", "a <speak>b</speak>", "<b>hi</b> & <", "<speak-x>"]
)
def test_other_text_with_angle_brackets_is_text(client, server, text):
    answer = say(client, input=text)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<speak>a<foo/></speak>", "line 1, column 9"),
        ("<speak>a", "line 1, column 9"),
        ("<speak> </speak>", "no text"),
        ("<speak>" + "<break time='9s'/>" * 7 + "a</speak>", "at most 60 s"),
        ("<speak><voice name='Zoe'>a</voice></speak>", "no voice 'Zoe'"),
    ],
)
def test_refusals_are_client_errors_about_the_input(client, text, message):
    answer = say(client, input=text)
    assert answer.status_code in (400, 404), answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "input"
