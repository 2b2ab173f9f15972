"""Harmful input to a real server: the right response, and nothing left behind.

One table. After each line a normal request works and the memory is back; after all of them there
is no new thread, descriptor or dead child, and the log holds no key and nothing that was said.

Not here, for there is no such API server: chat with audio, keys that end. Names that change what
they mean, and what else becomes of clips that are fetched, are in `test_references.py`. What clips
become when voices are made, found and deleted at the same time is in the voices' tests."""

from __future__ import annotations

import base64
import json
import os
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection

import httpx
import numpy as np
import pytest

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from tests.api.bad_audio import flac_of, forged_flac, nested_mp4, opus_bomb, wav_that_claims
from tests.api.conftest import wait_for
from tests.api.remote_clips import RemoteClips
from tests.api.served import served

KEY = "a-key-that-nobody-guesses"
MARK = "zanzibarium"
TTS, ASR = "izwi-tiny-tts", "izwi-tiny-asr"
SPEECH, WRITE = "/v1/audio/speech", "/v1/audio/transcriptions"
TRANSLATE = "/v1/audio/translations"
ASK = {
    "model": TTS,
    "input": "The house is near.",
    "voice": "amber",
    "response_format": "pcm",
    "max_new_tokens": 2,  # it is asked some two hundred times
}
LONGEST = "hello " * 682 + "abcd"
INT64 = 2**63
MEGABYTE = 1 << 20
SLACK = 1.1
ENDLESS_PATHS = ("/drops", "/drops-of-a-head")  # of hosts that are waited for as long as allowed
TRIMMED_S = 3.0  # an idle server gives memory back after 2 s
_ERROR_KEYS = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def remote():
    with RemoteClips(tone(2.0)) as running:
        yield running


@contextmanager
def serving(folder, remote, **environ):
    """A server with our key that fetches from hosts, and a client of it."""
    listed = f"{remote.entry},http://good.example,good.example"
    options = {"IZWI_API_KEY": KEY, "IZWI_REFERENCE_HOSTS": listed} | environ
    headers = {"authorization": f"Bearer {KEY}"}
    with served(folder, "--model", TTS, "--model", ASR, **options) as running:
        running.remote = remote
        with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
            yield running, http


@pytest.fixture(scope="module")
def server_and_client(tmp_path_factory, remote):
    with serving(tmp_path_factory.mktemp("faults"), remote) as both:
        yield both


@pytest.fixture(scope="module")
def server(server_and_client):
    return server_and_client[0]


@pytest.fixture(scope="module")
def client(server_and_client):
    return server_and_client[1]


@pytest.fixture(scope="module")
def hasty(tmp_path_factory, remote):
    """A server that waits a second for clients and hosts, and is asked by slow ones alone.

    On a busy machine each client may seem slow to it.
    """
    pace = {"IZWI_MAX_HEAD_S": "1", "IZWI_BODY_GRACE_S": "1", "IZWI_MAX_BODY_S": "30"}
    pace |= {"IZWI_MAX_REFERENCE_FETCH_S": "1"}
    with serving(tmp_path_factory.mktemp("hasty"), remote, **pace) as both:
        yield both


@pytest.fixture(scope="module")
def baseline_mib(server, client):
    """The memory of a server whose pages and pools have been used before."""
    for seed in range(5):
        send_file(client, WRITE, {"model": ASR}, noise(20.0, seed))
        for _ in range(4):
            normal(client)
        send_file(client, WRITE, {"model": ASR}, tone(2.0))
        send_file(client, WRITE, {"model": ASR}, bytes(24 * MEGABYTE))
        client.post(SPEECH, json=ASK | {"input": "x" * MEGABYTE})
    client.post(SPEECH, json=ASK | {"input": LONGEST})
    time.sleep(TRIMMED_S)
    return server.rss_mib()


@pytest.fixture(scope="module")
def hasty_baseline_mib(hasty):
    """The memory of the hasty server after the first requests."""
    server, client = hasty
    for _ in range(5):
        ask_of_host(client, server, "/clip.wav")
        normal(client)
    time.sleep(TRIMMED_S)
    return server.rss_mib()


def normal(client):
    answer = client.post(SPEECH, json=ASK)
    assert answer.status_code == 200, answer.text
    assert answer.content


def send_file(client, path, fields, content, name="a.wav"):
    return client.post(path, data=fields, files={"file": (name, content)})


def tone(seconds, rate=16_000, level=0.3):
    return to_wav(level * np.sin(np.arange(int(seconds * rate)) / 20), rate)


def noise(seconds, seed=0):
    return to_wav(np.random.default_rng(seed).uniform(-0.5, 0.5, int(16_000 * seconds)))


def to_wav(samples, rate=16_000):
    pcm = to_s16le(np.asarray(samples, np.float32))
    return wav_header(rate, len(pcm)) + pcm


@dataclass
class Fault:
    """A request and the allowed responses. `statuses` with None: the server may close instead."""

    ask: object
    statuses: tuple
    param: str | None = None
    code: str | None = None
    cpu_s: float = 20.0  # of all processes of the server
    hasty: bool = False  # asked of the server that waits a second for what is slow
    headers: dict = field(default_factory=dict)


def made(content):
    """Large bodies are made when they are sent."""
    return content() if callable(content) else content


def speech(statuses, param=None, code=None, **fields):
    def ask(client, _):
        given = {key: made(value) for key, value in (ASK | fields).items() if value is not ...}
        return client.post(SPEECH, json=given)

    return Fault(ask, statuses, param, code)


def body(statuses, content, path=SPEECH, **limits):
    head = {"content-type": "application/json"}
    return Fault(lambda c, _: c.post(path, content=made(content), headers=head), statuses, **limits)


def clip(statuses, text, param="ref_audio", **fields):
    return speech(statuses, param, ref_audio=text, voice=..., **({"ref_text": "a"} | fields))


def ask_of_host(client, server, path):
    given = ASK | {"ref_audio": server.remote.entry + path, "ref_text": "a"}
    del given["voice"]
    return client.post(SPEECH, json=given)


def fetched(statuses, path, code=None):
    """A clip at an address that may be asked."""
    ask = partial(ask_of_host, path=path)
    return Fault(ask, statuses, "ref_audio", code, hasty=path in ENDLESS_PATHS)


def upload(statuses, content, param="file", code=None, path=WRITE, name="a.wav", **fields):
    fields = {"model": ASR} | fields
    return Fault(
        lambda c, _: send_file(c, path, fields, made(content), name), statuses, param, code
    )


def raw(statuses, content, *, end=False):
    return Fault(lambda _, s: s.raw(made(content), end=end), statuses)


def drips(head, drip=b" "):
    """A client that sends its head at once, and the rest a few bytes at a time."""
    return Fault(
        lambda _, s: s.drip(head, drip), (408,), code="request_timeout", headers=CLOSED, hasty=True
    )


def request(method, path, statuses, code=None, headers=None, **options):
    headers = headers or {}
    return Fault(
        lambda c, _: c.request(method, path, headers=headers, **options), statuses, code=code
    )


def stranger(headers, path="/v1/models"):
    """A request without our key."""

    def ask(client, server):
        return httpx.get(server.url + path, headers=headers)

    return Fault(ask, (401,), code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def endless_form(client, server):
    def pieces():
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(64):
            yield bytes(MEGABYTE)

    head = {"content-type": "multipart/form-data; boundary=b"}
    return client.post(WRITE, content=pieces(), headers=head)


def post_head(*lines, path=SPEECH):
    head = (f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {KEY}", *lines)
    return "\r\n".join(head).encode() + b"\r\n\r\n"


def get_head(*lines, path="/v1/models"):
    head = (f"GET {path} HTTP/1.1", "host: x", f"authorization: Bearer {KEY}", *lines)
    return "\r\n".join(head).encode() + b"\r\n\r\n"


CLOSED = {"connection": "close"}
FORM = "content-type: multipart/form-data; boundary=b"
UPGRADE = (
    *("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13"),
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)
HIDDEN = get_head(path="/livez")
BAD, NO, BIG = (400,), (404,), (413,)
ADDRESSES = (
    *("http://127.0.0.1:22", "http://169.254.169.254/latest", "http://[::1]", "http://0.0.0.0"),
    *("http://[::ffff:127.0.0.1]", "http://2130706433", "http://good.example\\@127.0.0.1/"),
    *("http://u:p@127.0.0.1/", "http://a.example/#@127.0.0.1", "http://a.example/\r\nx: y"),
    *("http://u:p@good.example/", "http://good.example/#a", "http://good.example/\r\nx: y"),
    *(
        "http://good.example:80\\@127.0.0.1/",
        "http://good.example@127.0.0.1/",
        "file:///etc/passwd",
    ),
)
NO_CLIP = "reference_not_fetched"
FAULTS = {
    # A. JSON and speech
    "A1 empty": body(BAD, b"", cpu_s=1),
    "A1 brace": body(BAD, b"{", cpu_s=1),
    "A1 list": body(BAD, b"[]", cpu_s=1),
    "A1 null": body(BAD, b"null", cpu_s=1),
    "A1 NaN": body(BAD, b'{"speed": NaN}', cpu_s=1),
    "A1 1e999": body(BAD, b'{"speed": 1e999}', cpu_s=1),
    "A1 no UTF-8": body(BAD, b'{"model": "\xff"}', cpu_s=1),
    "A1 a lone surrogate": body(
        (400, 404), b'{"model": "\\ud800", "input": "a", "voice": "a"}', cpu_s=1
    ),
    "A1 10 MB of nesting": body(BAD, lambda: b"[" * (10 * MEGABYTE), cpu_s=2),
    "A1 10 MB of objects": body(BAD, lambda: b'{"a":' * (2 * MEGABYTE), cpu_s=2),
    "A1 17 MB": body(BIG, lambda: b" " * (17 * MEGABYTE), code="too_large"),
    "A1 a number of a megabyte": body(BAD, lambda: b'{"seed": ' + b"9" * MEGABYTE + b"}", cpu_s=2),
    "A3 no model": speech(BAD, "model", model=...),
    "A3 no input": speech(BAD, "input", input=...),
    "A3 no voice": speech(BAD, "voice", voice=...),
    "A5 4096 characters": speech((200,), input=LONGEST),
    "A5 4097 characters": speech(BAD, "input", input="x" * 4097),
    "A5 a megabyte": speech((400, 413), input="x" * MEGABYTE),
    "A7 control words": speech((200,), input="<|im_end|><|audio|> <|endoftext|> hello"),
    "A7 a pause": speech(BAD, "input", input="[pause:9999999s] hello"),
    "A7 many pauses": speech(BAD, "input", input="[pause:9s]" * 400 + "hello"),
    "A7 pronunciations": speech(BAD, "pronunciations", pronunciations={"": "a"}),
    "A7 entities": speech(
        (200, 400), input='<!DOCTYPE x [<!ENTITY a "&a;&a;">]><speak>&a;</speak>'
    ),
    "A7 deep SSML": speech(BAD, "input", input="<p>" * 10_000),
    "A9 ogg": speech(BAD, "response_format", response_format="ogg"),
    "A9 MP3": speech(BAD, "response_format", response_format="MP3"),
    "A9 null": speech((200,), response_format=None),
    "A9 5": speech(BAD, "response_format", response_format=5),
    "A11 unknown voice": speech((404,), "voice", "voice_not_found", voice="nobody"),
    "A11 voice {}": speech(BAD, "voice", voice={}),
    "A11 voice id 5": speech(BAD, "voice", voice={"id": 5}),
    "A11 voice []": speech(BAD, "voice", voice=[]),
    "A13 unknown model": speech(NO, "model", "model_not_found", model="none"),
    "A13 model path": speech(NO, "model", "model_not_found", model="../x"),
    "A13 model address": speech(NO, "model", "model_not_found", model="https://a.example/m"),
    "A13 model of 10 kB": speech(NO, "model", "model_not_found", model="m" * 10_000),
    "A15 seed over": speech(BAD, "seed", seed=INT64),
    "A15 seed under": speech(BAD, "seed", seed=-INT64 - 1),
    "A15 no tokens": speech(BAD, "max_new_tokens", max_new_tokens=0),
    "A15 10^18 tokens": speech(BAD, "max_new_tokens", max_new_tokens=10**18),
    # B. reference clips
    **{f"B17 {url}": clip(BAD, url) for url in ADDRESSES},
    "B19 a listed name that is none": clip(BAD, "http://good.example/clip.wav"),
    "B21 a clip": fetched((200,), "/clip.wav"),
    **{
        f"B21 {path}": fetched(BAD, path, NO_CLIP)
        for path in (
            *("/inside", "/302", "/307", "/10-GB", "/says-10-GB", "/drops", "/drops-of-a-head"),
            *("/crumbs", "/interim-for-ever", "/a-large-head", "/packed", "/cut-off", "/no-http"),
        )
    },
    "B21 text": fetched(BAD, "/text", "invalid_audio"),
    "B23 padding": clip(BAD, "data:audio/wav;base64,AAA"),
    "B23 no base64": clip(BAD, "data:audio/wav;base64,%%%%"),
    "B23 html": clip(BAD, "data:text/html;base64,AAAA"),
    "B23 no comma": clip(BAD, "data:audio/wav;base64"),
    "B23 15 MB": clip(BIG, lambda: "data:audio/wav;base64," + "A" * (15 * MEGABYTE)),
    "B23 50 MB": clip(BIG, lambda: "data:audio/wav;base64," + "A" * (50 * MEGABYTE), param=None),
    "B23 a bomb": clip(BIG, lambda: base64.b64encode(opus_bomb(9 * MEGABYTE)).decode()),
    "B23 many frames": clip(BAD, base64.b64encode(forged_flac()).decode()),
    "B25 100 kB of ref_text": clip(BAD, "AAAA", "ref_text", ref_text="x" * 100_000),
    # C. uploads
    "C31 25 MB and a byte": upload(BIG, lambda: bytes(25 * MEGABYTE + 1), code="too_large"),
    "C31 without a length": Fault(endless_form, BIG, "file", "too_large"),
    "C31 a length that lies": raw(
        (400, None),
        post_head(FORM, "content-length: 100", path=WRITE) + bytes(MEGABYTE),
    ),
    "C33 the bomb": upload(BIG, lambda: opus_bomb(25 * MEGABYTE), code="too_large"),
    "C33 the bomb in small packets": upload(BIG, lambda: opus_bomb(24 * MEGABYTE, b"\x18", 60)),
    "C33 forged rate": upload(BAD, forged_flac(), code="invalid_audio"),
    "C33 655350 Hz, 8 channels": upload(BAD, lambda: flac_of(655_350, 8, 60), code="invalid_audio"),
    "C33 WAV of 4 GB": upload(BAD, wav_that_claims(2**32 - 1, content=bytes(32_000))),
    "C33 WAV of 4 GB, in a RIFF of 4 GB": upload(BAD, wav_that_claims(2**32 - 44, 2**32 - 8)),
    "C33 WAV without an end, and no audio": upload(BAD, wav_that_claims(2**32 - 1, 2**32 - 1)),
    "C33 0 Hz": upload(BAD, to_wav(np.ones(9000), 0)),
    "C33 65535 channels": upload(BAD, lambda: with_shape(channels=65_535)),
    "C33 0 bits": upload(BAD, lambda: with_shape(bits=0)),
    "C33 boxes in boxes": upload(BAD, nested_mp4(10_000)),
    "C33 IAMF": upload(BAD, b"\xf8\x06iamf\0\0" + b"\xff" * 4000),
    "C33 ID3 of 200 MB": upload(BAD, b"ID3\4\0\0\x5f\x5e\x0f\x00" + b"\xff\xfb" * 9000),
    "C33 a playlist": upload(BAD, b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"),
    "C33 too short": upload(BAD, tone(0.05), code="audio_too_short"),
    "C33 nothing": upload(BAD, b""),
    "C35 path": upload((200,), tone(1.0), name="../../a.wav"),
    "C35 5 kB": upload((200, 400), tone(1.0), param=None, name="a" * 5000 + ".wav"),
    "C35 no extension": upload((200,), tone(1.0), name="a"),
    "C35 Unicode": upload((200,), tone(1.0), name="звук🎤.wav"),
    "C37 unknown granularity": upload(
        BAD,
        tone(1.0),
        "timestamp_granularities",
        **{"timestamp_granularities[]": "page", "response_format": "verbose_json"},
    ),
    "C37 granularity with json": upload(
        BAD, tone(1.0), "timestamp_granularities", **{"timestamp_granularities[]": "segment"}
    ),
    "C39 JSON": upload((200,), tone(1.0), chunking_strategy='{"type": "server_vad"}'),
    "C39 brackets": upload((200,), tone(1.0), **{"chunking_strategy[type]": "server_vad"}),
    "C39 auto": upload((200,), tone(1.0), chunking_strategy="auto"),
    "C39 unknown": upload(BAD, tone(1.0), "chunking_strategy", chunking_strategy="always"),
    "C39 threshold 2": upload(
        BAD,
        tone(1.0),
        "chunking_strategy",
        chunking_strategy='{"type": "server_vad", "threshold": 2}',
    ),
    "C41 silence": upload((200,), to_wav(np.zeros(16_000 * 20))),
    "C41 noise": upload((200,), lambda: noise(20.0)),
    "C41 a square wave": upload(
        (200,), lambda: to_wav(np.sign(np.sin(np.arange(16_000 * 20) / 20)))
    ),
    "C translation": upload(
        BAD, tone(1.0), "model", "translation_unsupported", path=TRANSLATE, prompt=MARK
    ),
    "C translation of a bomb": upload(
        BAD, lambda: opus_bomb(25 * MEGABYTE), "model", path=TRANSLATE
    ),
    "C translation, no such model": upload(
        NO, tone(1.0), "model", "model_not_found", path=TRANSLATE, model="no"
    ),
    "C translation, a model that speaks": upload(
        BAD, tone(1.0), "model", path=TRANSLATE, model=TTS
    ),
    # E. transport
    "E47 a header of 1 MB": raw((431, None), get_head("x: " + "y" * MEGABYTE)),
    "E47 1000 headers": raw((431,), get_head(*(f"x-{i}: y" for i in range(1000)))),
    "E47 a target of 64 kB": raw((414, 431), get_head(path="/" + "x" * 65_536)),
    "E47 a target of 9 kB": raw((414,), get_head(path="/" + "x" * 9000)),
    "E47 HTTP/9.9": raw((400,), b"GET / HTTP/9.9\r\nhost: x\r\n\r\n"),
    "E47 no HTTP": raw((400,), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "E47 a length and chunks": raw(
        (400,),
        post_head("content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n" + HIDDEN,
    ),
    "E47 two lengths": raw((400,), post_head("content-length: 5", "content-length: 6") + HIDDEN),
    "E47 a length below 0": raw((400,), post_head("content-length: -1")),
    "E47 a length in words": raw((400,), post_head("content-length: five")),
    "E47 a coding of no name": raw((400, 501), post_head("transfer-encoding: x, chunked")),
    "E47 a chunk too large to say": raw(
        (400,), post_head("transfer-encoding: chunked") + b"f" * 22 + b"\r\n"
    ),
    "E47 a chunk that never comes": raw(
        (None,), post_head("transfer-encoding: chunked") + b"fffffffffffffff\r\nabc", end=True
    ),
    "E47 a chunk that is none": raw(
        (400,), post_head("transfer-encoding: chunked") + b"xyz\r\nabc\r\n" + HIDDEN
    ),
    "E47 3 MB in crumbs": raw(
        (400, None),
        lambda: post_head("transfer-encoding: chunked") + b"1\r\nx\r\n" * (3 * MEGABYTE),
    ),
    "E47 a space before the colon": raw((400,), get_head("x : y")),
    "E47 NUL in a header": raw((400,), get_head("x: a\0b")),
    "E a body that stays away": drips(post_head("content-length: 100"), b""),
    "E a body in drops": drips(post_head("content-length: 1000")),
    "E chunks in drops": drips(post_head("transfer-encoding: chunked"), b"1\r\n{\r\n"),
    "E a form in drops": drips(
        post_head(FORM, "content-length: 1000", path=WRITE)
        + b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    ),
    "E headers in drops": drips(b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ", b"y"),
    "E a request that stays away": drips(b"", b""),
    "E51 method": request("GET", SPEECH, (405,), "method_not_allowed"),
    "E51 a slash more": request("POST", SPEECH + "/", NO, json=ASK),
    "E51 a slash before": raw((404,), get_head("connection: close", path="//v1/models")),
    "E51 nothing": request("GET", "/v1/nothing", NO, "not_found"),
    "E51 realtime is not served": request("POST", "/v1/realtime?model=x", NO, "not_found"),
    **{
        f"E51 no WebSocket at {path}": raw((404,), get_head(*UPGRADE, path=path))
        for path in ("/v1/realtime?model=x", "/v1/nothing", SPEECH, "/")
    },
    "E51 no WebSocket without a key": raw(
        (401,),
        b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\n" + "\r\n".join(UPGRADE).encode() + b"\r\n\r\n",
    ),
    "E51 a handshake with a body": raw(
        BAD, get_head(*UPGRADE, "content-length: 5", path="/v1/realtime") + b"hello"
    ),
    "E51 a handshake with a header of 9 kB": raw(
        (431,), get_head(*UPGRADE, "x: " + "y" * 9000, path="/v1/realtime")
    ),
    "E51 a session by plain HTTP": request("GET", "/v1/audio/speech/stream", NO, "not_found"),
    "E51 up": raw((404,), get_head("connection: close", path="/page/../../etc/passwd")),
    "E51 a method of no name": raw((405, 400), b"BREW " + get_head("connection: close")[4:]),
    "E53 ranges": request(
        "GET", "/", (200, 416), headers={"range": "bytes=" + "0-0," * 5000 + "1-1"}
    ),
    "E53 ranges of a file": request(
        "GET", "/page/app.js", (200, 416), headers={"range": "bytes=" + "0-0," * 5000 + "1-1"}
    ),
    # F. keys
    "F55 no key": stranger({}),
    "F55 a wrong key": stranger({"authorization": "Bearer " + KEY[:-1]}),
    "F55 an empty key": raw(
        (401,),
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \r\n"
        b"connection: close\r\n\r\n",
    ),
    "F55 Basic": stranger({"authorization": "Basic " + base64.b64encode(KEY.encode()).decode()}),
    "F55 two headers": stranger([("authorization", f"Bearer {KEY}")] * 2),
    "F55 in the query": stranger({}, f"/v1/models?api_key={KEY}&text={MARK}"),
    "F55 not ASCII": stranger({"authorization": b"Bearer \xff\xfe"}),
    "F models, unknown": request("GET", "/v1/models/none", NO, "model_not_found"),
    "F models, a path": request("GET", "/v1/models/..%2F..%2Fetc", NO, "model_not_found"),
    "F models are not deleted": request("DELETE", f"/v1/models/{TTS}", (403,), "permission_denied"),
    "F models, delete unknown": request("DELETE", "/v1/models/a%2Fb", NO, "model_not_found"),
}


def with_shape(channels=1, rate=16_000, bits=16):
    align = channels * bits // 8
    content = bytearray(tone(1.0))
    struct.pack_into(
        "<HIIHH", content, 22, channels, rate, (rate * align) % 2**32, align % 2**16, bits
    )
    return bytes(content)


def status_and_error(answer):
    """Return the status, the error object if there is one, and the headers."""
    if isinstance(answer, tuple):
        status, came = answer
        if status is None:
            return None, None, {}
        head, _, rest = came.partition(b"\r\n\r\n")
        assert b'{"status":"ok"}' not in rest, "what was hidden in the body was answered"
        lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
        headers = {name.lower(): value for name, _, value in lines}
        first = rest[: int(headers["content-length"])]
        return status, json.loads(first)["error"] if status >= 400 else None, headers
    error = answer.json()["error"] if answer.status_code >= 400 else None
    return answer.status_code, error, answer.headers


# One or two of each kind, the slow ones and those for which a server waits left out.
BY_DAY = (
    *("A1 brace", "A1 no UTF-8", "A1 10 MB of nesting", "A1 17 MB", "A3 no input"),
    *("A5 4097 characters", "A7 control words", "A7 a pause", "A7 deep SSML", "A9 MP3"),
    *("A11 unknown voice", "A11 voice {}", "A13 model path", "A15 seed over", "A15 10^18 tokens"),
    *("B17 http://169.254.169.254/latest", "B17 http://good.example\\@127.0.0.1/"),
    *("B17 file:///etc/passwd", "B21 a clip", "B21 /302", "B21 /10-GB", "B21 text"),
    *("B23 html", "B23 a bomb", "C31 25 MB and a byte", "C31 without a length"),
    *("C31 a length that lies", "C33 the bomb in small packets", "C33 WAV of 4 GB"),
    *("C33 forged rate", "C33 a playlist", "C33 nothing", "C35 path", "C37 unknown granularity"),
    *("C39 unknown", "C41 silence", "C translation", "E47 a header of 1 MB", "E47 no HTTP"),
    *("E47 a length and chunks", "E47 3 MB in crumbs", "E47 NUL in a header", "E51 method"),
    *("E51 up", "E51 no WebSocket without a key", "E53 ranges", "F55 no key", "F55 a wrong key"),
    *("F55 in the query", "F models are not deleted"),
)
assert set(BY_DAY) < set(FAULTS)


@pytest.mark.parametrize(
    "name",
    [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS],
)
def test_fault(request, name):
    fault = FAULTS[name]
    if fault.hasty:
        server, client = request.getfixturevalue("hasty")
        baseline_mib = request.getfixturevalue("hasty_baseline_mib")
    else:
        server, client = request.getfixturevalue("server_and_client")
        baseline_mib = request.getfixturevalue("baseline_mib")
    server.forget_peak()
    before_s = server.cpu_s()
    answer = fault.ask(client, server)
    took_s = server.cpu_s() - before_s
    status, error, headers = status_and_error(answer)
    assert status in fault.statuses, (status, error)
    assert took_s < fault.cpu_s
    if error is not None:
        assert set(error) == _ERROR_KEYS
        assert error["type"] == "invalid_request_error"
        assert 0 < len(error["message"]) <= 400
        assert "127.0.0.1" not in error["message"]
        assert headers["x-request-id"].startswith("req_")
        assert fault.param is None or error["param"] == fault.param
        assert fault.code is None or error["code"] == fault.code
    for header, value in fault.headers.items():
        assert headers[header] == value
    if status == 405:
        assert headers["allow"]
    assert server.peak_mib() < baseline_mib + 300
    normal(client)
    until_s = time.monotonic() + 60
    while server.rss_mib() > baseline_mib * SLACK:
        assert time.monotonic() < until_s, f"{server.rss_mib():.0f} MiB, was {baseline_mib:.0f}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "name",
    [
        "C33 the bomb",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("C33 forged rate", "C33 655350 Hz, 8 channels", "C33 WAV of 4 GB")
        ),
    ],
)
def test_bombs_are_refused_within_two_seconds_of_work(server, client, baseline_mib, name):
    content = {
        "C33 the bomb": lambda: opus_bomb(25 * MEGABYTE),
        "C33 forged rate": forged_flac,
        "C33 655350 Hz, 8 channels": lambda: flac_of(655_350, 8, 60),
        "C33 WAV of 4 GB": lambda: wav_that_claims(2**32 - 1, content=bytes(32_000)),
    }[name]()
    server.forget_peak()
    before_mib, before_s = server.rss_mib(), server.cpu_s()
    answer = send_file(client, WRITE, {"model": ASR}, content)
    took_s, grown_mib = server.cpu_s() - before_s, server.peak_mib() - before_mib
    print(f"{name}: {answer.status_code} in {took_s:.2f} s, {grown_mib:.0f} MiB more at the most")
    assert 400 <= answer.status_code < 500
    assert took_s < 2
    assert grown_mib < 300


@pytest.mark.slow
def test_a_burst_is_answered_or_gets_retry_after(server, client):
    """Each client connects and sends its whole request at once: none is slow by itself."""
    ask = ASK | {"input": "The house is near the river.", "max_new_tokens": 8}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connections = [HTTPConnection("127.0.0.1", server.port, timeout=240) for _ in range(64)]
    for connection in connections:
        connection.request("POST", SPEECH, json.dumps(ask).encode(), headers)

    def read(connection):
        with closing(connection):
            answer = connection.getresponse()
            return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(read, connections))
    assert {answer.status_code for answer in answers} <= {200, 429, 503}
    assert any(answer.status_code == 200 for answer in answers)
    for answer in answers:
        if answer.status_code != 200:
            assert 1 <= int(answer.headers["retry-after"]) <= 120
            assert set(answer.json()["error"]) == _ERROR_KEYS
    normal(client)


def test_a_decoder_that_is_killed_costs_one_request(server, client):
    normal(client)
    for process in server.children():
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: not set(server.children().values()) - {"Z"})
    answer = send_file(client, WRITE, {"model": ASR}, tone(1.0))
    assert answer.status_code == 200, answer.text


NOTHING_LEFT_OF = {
    "server_and_client": (
        *("A1 list", "B23 html", "C33 forged rate", "C31 without a length", "E47 no HTTP"),
        *("B21 /10-GB", "B21 /302", "B21 a clip"),
    ),
    "hasty": ("B21 /drops",),
}


@pytest.mark.parametrize(
    "which", ["server_and_client", pytest.param("hasty", marks=pytest.mark.slow)]
)
def test_harmful_requests_leave_no_threads_or_descriptors(request, which):
    server, client = request.getfixturevalue(which)
    normal(client)
    threads, descriptors = server.num_threads(), server.num_descriptors()
    for name in NOTHING_LEFT_OF[which]:
        for _ in range(5):
            FAULTS[name].ask(client, server)
    normal(client)
    wait_for(lambda: server.num_threads() <= threads + 1)
    wait_for(lambda: server.num_descriptors() <= descriptors + 2)
    wait_for(lambda: "Z" not in server.children().values())
    assert len(server.children()) <= 2
    assert "izwi_http_in_flight 1.0" in client.get("/metrics").text  # the one that asks
    log = server.log.read_text()
    assert "POST /v1/audio/speech" in log
    for secret in (KEY, MARK, ASK["input"], "Traceback"):
        assert secret not in log
