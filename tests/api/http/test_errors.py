"""Bad input: a quick error in OpenAI's format, and the next request works."""

from __future__ import annotations

import base64
import json
import socket
from contextlib import suppress

import pytest

ASK = {"model": "tts", "input": "hi", "voice": "Ann"}
SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"


def check(answer, status, param=None, code=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"]) < 500
    assert error["type"] == "invalid_request_error"
    assert answer.headers["x-request-id"].startswith("req_")
    if param:
        assert error["param"] == param
    if code:
        assert error["code"] == code


def without(key):
    return {name: value for name, value in ASK.items() if name != key}


BAD_SPEECH = {
    "empty text": (ASK | {"input": ""}, 400, "input"),
    "blank text": (ASK | {"input": " \n\t"}, 400, "input"),
    "4097 characters": (ASK | {"input": "x" * 4097}, 400, "input"),
    "a megabyte": (ASK | {"input": "x" * 1_000_000}, 400, "input"),
    "text is a number": (ASK | {"input": 5}, 400, "input"),
    "unknown voice": (ASK | {"voice": "nobody"}, 404, "voice"),
    "voice path": (ASK | {"voice": "../../etc"}, 404, "voice"),
    "voice {}": (ASK | {"voice": {}}, 400, "voice"),
    "voice id 5": (ASK | {"voice": {"id": 5}}, 400, "voice"),
    "voice []": (ASK | {"voice": []}, 400, "voice"),
    "unknown model": (ASK | {"model": "../x"}, 404, "model"),
    "model of another task": (ASK | {"model": "org/asr"}, 400, "model"),
    "format ogg": (ASK | {"response_format": "ogg"}, 400, "response_format"),
    "format MP3": (ASK | {"response_format": "MP3"}, 400, "response_format"),
    "format 5": (ASK | {"response_format": 5}, 400, "response_format"),
    "unknown key": (ASK | {"colour": 1}, 400, "colour"),
    "speed 0.2": (ASK | {"speed": 0.2}, 400, "speed"),
    "speed text": (ASK | {"speed": "fast"}, 400, "speed"),
    "seed 2^63": (ASK | {"seed": 2**63}, 400, "seed"),
    "seed below": (ASK | {"seed": -(2**63) - 1}, 400, "seed"),
    "no tokens": (ASK | {"max_new_tokens": 0}, 400, "max_new_tokens"),
    "10^18 tokens": (ASK | {"max_new_tokens": 10**18}, 400, "max_new_tokens"),
    "language": (ASK | {"language": "klingon"}, 400, "language"),
    "language and a line break": (ASK | {"language": "english\n"}, 400, "language"),
    "no model": (without("model"), 400, "model"),
    "no input": (without("input"), 400, "input"),
    "no voice": (without("voice"), 400, "voice"),
    "null model": (ASK | {"model": None}, 400, "model"),
    "ref address": (ASK | {"ref_audio": "http://127.0.0.1:22/", "ref_text": "a"}, 400, "ref_audio"),
    "ref not base64": (ASK | {"ref_audio": "%%%", "ref_text": "a"}, 400, "ref_audio"),
    "ref html": (ASK | {"ref_audio": "data:text/html;base64,AAAA", "ref_text": "a"}, 400, None),
    "ref not audio": (ASK | {"ref_audio": "AAAA", "ref_text": "a"}, 400, "ref_audio"),
    "ref without text": (ASK | {"ref_audio": "AAAA"}, 400, "ref_text"),
    "text without ref": (ASK | {"ref_text": "a"}, 400, "ref_text"),
    "ref 11 MB": (
        ASK | {"ref_audio": base64.b64encode(bytes(11 << 20)).decode(), "ref_text": "a"},
        *(413, "ref_audio"),
    ),
}


@pytest.mark.parametrize("name", BAD_SPEECH)
def test_bad_speech(client, name):
    body, status, param = BAD_SPEECH[name]
    check(client.post(SPEECH, json=body), status, param)
    assert client.post(SPEECH, json=ASK).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"5", b'{"a": NaN}', b"\xff\xfe", b"[" * 1_000_000]
)
def test_bodies_that_are_not_json_objects_are_400(client, body):
    answer = client.post(SPEECH, content=body, headers={"content-type": "application/json"})
    check(answer, 400)
    assert client.post(SPEECH, json=ASK).status_code == 200


def test_a_json_body_over_the_limit(client):
    check(client.post(SPEECH, content=b" " * (16 << 20) + b"{}"), 413, code="too_large")


BAD_FILES = {
    "not audio": b"hello " * 1000,
    "empty": b"",
    "cut off": None,
    "no samples": None,
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_uploads(client, tone_wav, name):
    content = BAD_FILES[name]
    if name == "cut off":
        content = tone_wav(2.0)[:9000]
    if name == "no samples":
        content = tone_wav(0.0)
    form = {"model": "org/asr"}
    check(client.post(TRANSCRIPTIONS, data=form, files={"file": ("a", content)}), 400, "file")
    good = client.post(TRANSCRIPTIONS, data=form, files={"file": ("a", tone_wav(1.0))})
    assert good.status_code == 200


def test_an_upload_over_the_limit(client):
    files = {"file": ("a.wav", bytes((25 << 20) + 1))}
    answer = client.post(TRANSCRIPTIONS, data={"model": "org/asr"}, files=files)
    check(answer, 413, "file", "too_large")


def test_an_upload_without_a_length_is_cut_at_the_limit(client):
    def endless():
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(64):
            yield bytes(1 << 20)

    headers = {"content-type": "multipart/form-data; boundary=b"}
    check(client.post(TRANSCRIPTIONS, content=endless(), headers=headers), 413)


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, "/v1/nothing"])
def test_rest_of_a_refused_body_is_not_read(client, server, path):
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    content_type = "content-type: multipart/form-data; boundary=b\r\n\r\n"
    part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    sent_mb = 0
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw,
        suppress(ConnectionError),
    ):
        raw.sendall((head + content_type).encode() + b"%x\r\n%b\r\n" % (len(part), part))
        while sent_mb < 128:
            raw.sendall(chunk)
            sent_mb += 1
    assert sent_mb < 64  # the limit, and what the sockets hold
    assert client.get("/livez").status_code == 200


def test_a_body_with_two_lengths_ends_the_connection(client, server):
    ask = b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n"
    hidden = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        raw.sendall(ask + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + hidden)
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert client.get("/livez").status_code == 200


def test_a_message_does_not_quote_megabytes(client):
    check(client.post(SPEECH, json=ASK | {"language": "x" * 100_000}), 400, "language")


def test_forms_that_are_none(client, tone_wav):
    check(client.post(TRANSCRIPTIONS, json={}), 400)
    check(client.post(TRANSCRIPTIONS, data={"model": "org/asr"}, files={"x": b"1"}), 400, "file")
    files = {"file": ("a", tone_wav(1.0))}
    check(client.post(TRANSCRIPTIONS, files=files), 400, "model", "missing_required_parameter")
    check(client.post(TRANSCRIPTIONS, data={"model": "no"}, files=files), 404, "model")
    two = [("file", ("a", b"1")), ("file", ("b", b"2"))]
    check(client.post(TRANSCRIPTIONS, data={"model": "org/asr"}, files=two), 400)
    broken = {"content-type": "multipart/form-data"}
    check(client.post(TRANSCRIPTIONS, content=b"x", headers=broken), 400)


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, "/v1/audio/translations"])
def test_a_file_that_is_sent_as_text_is_named_as_such(client, path):
    """A part of a form without a filename is a field, whatever it holds."""
    form = {"model": "org/asr", "file": "RIFF"}
    boundary = {"content-type": "multipart/form-data; boundary=b"}
    parts = [
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in form.items()
    ]
    answer = client.post(path, content="".join(parts) + "--b--\r\n", headers=boundary)
    check(answer, 400, "file")
    assert "filename" in answer.json()["error"]["message"]


def test_paths_and_methods(client):
    answer = client.get(SPEECH)
    check(answer, 405)
    assert answer.headers["allow"] == "POST"
    for path in ("/v1/nothing", SPEECH + "/", "//v1/audio/speech", "/page/../app.py"):
        check(client.post(path, json=ASK) if "speech" in path else client.get(path), 404)
    check(client.get("/v1/models/none"), 404, "model", "model_not_found")
    assert client.get("/v1/models/").json() == client.get("/v1/models").json()


def test_a_broken_request_line_does_not_hurt(client, server):
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"GET / HTTP/9.9\r\nx: " + b"y" * 100_000 + b"\r\n\r\n")
    assert client.get("/livez").status_code == 200


JSON_PATHS = (SPEECH, f"{SPEECH}/batch", "/v1/chat/completions")


@pytest.mark.parametrize("path", JSON_PATHS)
@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "json"]
)
def test_json_that_calls_itself_something_else_is_refused(client, path, kind):
    answer = client.post(path, content=json.dumps(ASK), headers={"content-type": kind})
    check(answer, 415, code="unsupported_media_type")
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [{}]
    + [
        {"content-type": kind}
        for kind in ("application/json", "Application/JSON; charset=utf-8", "application/ld+json")
    ],
)
def test_json_is_taken_under_its_own_names_and_without_one(client, headers):
    answer = client.post(SPEECH, content=json.dumps(ASK).encode(), headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("field", ["language", "languages[]"])
def test_a_language_with_a_line_break_is_refused(client, tone_wav, field):
    form, files = {"model": "org/asr", field: "en\n"}, {"file": ("a.wav", tone_wav(1.0))}
    check(client.post(TRANSCRIPTIONS, data=form, files=files), 400, field.removesuffix("[]"))
    files = {"file": ("a.wav", tone_wav(1.0))}
    form = {"model": "align", "text": "word", "language": "en\n"}
    answer = client.post("/v1/audio/align", data=form, files=files)
    check(answer, 400, "language")
