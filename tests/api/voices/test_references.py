"""`ref_audio` as an address: only listed hosts, and their faults reach no other request."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidRequest, Overloaded, ReferenceNotFetched
from izwi_api.cli.main import app as command_line
from izwi_api.environment import read_settings
from izwi_api.routes import speech_stream
from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from izwi_api.voices import references
from izwi_api.voices.reference_hosts import (
    FetchPace,
    ReferenceHost,
    is_address,
    is_public,
    parse_host,
    parse_url,
)
from izwi_api.voices.references import References
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, listening, wait_for
from tests.api.remote_clips import RemoteClips

SPEECH = "/v1/audio/speech"
SECONDS = 2.0
PCM = to_s16le(0.3 * np.sin(np.arange(int(SECONDS * 16_000)) / 20).astype(np.float32))
CLIP = wav_header(16_000, len(PCM)) + PCM
PACE = FetchPace(grace_s=60.0, min_bytes_per_s=1e9, max_s=60.0)
HASTY = FetchPace(grace_s=0.6, min_bytes_per_s=1e9, max_s=1.0)  # for what takes too long
CERTIFICATE = Path(__file__).with_name("clips_example.pem")  # with its key; until 2120
FOUND, NOT_FOUND = "93.184.216.34", "203.0.113.9"


def host(text):
    return parse_host(text, "--reference-host")


@pytest.fixture(scope="module")
def remote():
    with RemoteClips(CLIP) as running:
        yield running


@pytest.fixture(scope="module")
def tls_remote():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with RemoteClips(CLIP, context) as running:
        yield running


@contextmanager
def services(home, *hosts, pace=PACE):
    """A server that fetches from hosts: its client, and the model that is asked."""
    model = FakeSpeech()
    settings = Settings(home=home, reference_hosts=tuple(map(host, hosts)), reference_pace=pace)
    app = create_app(FakeEngine(), FakeRegistry(tts=model), settings)
    with listening(app, "auto") as port:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            yield http, model


@pytest.fixture(scope="module")
def served(tmp_path_factory, remote):
    with services(tmp_path_factory.mktemp("home"), remote.entry, "good.example") as running:
        yield running


@pytest.fixture(scope="module")
def hasty(tmp_path_factory, remote):
    """A server that waits a second for a clip: only endless responses are requested from it."""
    with services(tmp_path_factory.mktemp("home"), remote.entry, pace=HASTY) as running:
        yield running


def ask(http, address, **fields):
    given = {"model": "tts", "input": "hi", "ref_audio": address, "ref_text": "la"}
    return http.post(SPEECH, json=given | fields)


def refused(answer, code=None):
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "ref_audio")
    for inner in ("127.0.0.1", "169.254", "secret", "Errno", "refused"):
        assert inner not in error["message"]
    assert code is None or error["code"] == code
    return error["message"]


async def until(condition, seconds=60.0):
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited too long")


# -- what is fetched -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "path",
    ["", "/", "/clip.wav", "/clip.wav?a=b%20c&d=/?e", "/until-it-closes", "/chunked", "/interim"],
)
def test_a_clip_is_fetched(served, remote, path):
    http, model = served
    answer = ask(http, remote.entry + path)
    assert answer.status_code == 200, answer.text
    voice = model.asked[-1].voice
    assert (len(voice.samples), voice.text) == (SECONDS * 24_000, "la")
    line, *headers = remote.asked[-1].decode().split("\r\n")
    assert line == f"GET {path or '/'} HTTP/1.1"
    assert f"host: 127.0.0.1:{remote.port}" in [header.lower() for header in headers]
    assert not any(header.lower().startswith(("cookie", "authorization")) for header in headers)


def test_it_is_what_the_clip_itself_gives(served, remote):
    http, model = served
    for given in (remote.entry + "/clip.wav", base64.b64encode(CLIP).decode()):
        assert ask(http, given).status_code == 200
    one, other = (asked.voice.samples for asked in model.asked[-2:])
    assert np.array_equal(one, other)


def test_batches_fetch_too(served, remote):
    http, _ = served
    items = [{"input": "hi", "ref_audio": remote.entry + path} for path in ("/clip.wav", "/302")]
    batch = {"model": "tts", "items": items, "ref_text": "la"}
    good, bad = http.post(SPEECH + "/batch", json=batch).json()["results"]
    assert good["status"] == "success"
    assert (bad["error"]["param"], bad["error"]["code"]) == ("ref_audio", "reference_not_fetched")


def test_sessions_fetch_too(served, remote):
    http, model = served
    url = str(http.base_url).replace("http:", "ws:").rstrip("/") + "/v1/audio/speech/stream"
    config = {"type": "session.config", "model": "tts", "ref_text": "la"}
    config |= {"split_granularity": "sentence"}
    with connect(url) as socket:
        socket.send(json.dumps(config | {"ref_audio": remote.entry + "/302"}))
        assert json.loads(socket.recv(60))["error"]["param"] == "ref_audio"
        socket.send(json.dumps(config | {"ref_audio": remote.entry + "/clip.wav"}))
        for message in ({"type": "input.text", "text": "hello."}, {"type": "session.close"}):
            socket.send(json.dumps(message))
        kinds = [json.loads(m)["type"] for m in socket if isinstance(m, str)]
    assert kinds == ["audio.start", "audio.done", "session.done"]
    assert len(model.asked[-1].voice.samples) == SECONDS * 24_000


def test_a_session_waits_for_its_clip(hasty, remote, monkeypatch):
    limits = replace(speech_stream.LIMITS, config_s=0.1)
    monkeypatch.setattr(speech_stream, "LIMITS", limits)
    http, _ = hasty
    url = str(http.base_url).replace("http:", "ws:").rstrip("/") + "/v1/audio/speech/stream"
    config = {"type": "session.config", "ref_text": "la", "ref_audio": remote.entry + "/drops"}
    with connect(url) as socket:
        socket.send(json.dumps(config))  # it takes longer than a configuration may stay away
        assert json.loads(socket.recv(60))["error"]["code"] == "reference_not_fetched"
        assert json.loads(socket.recv(60))["error"]["code"] == "config_timeout"


# -- what the other side may do --------------------------------------------------------------------
SLOW, TOO_LARGE = "it took too long", "it has more than 10485760 bytes"
BROKEN = "RemoteProtocolError"
MISCHIEF = {  # path -> what the operator's log says
    **{f"/{status}": f"it answered {status}" for status in (300, 301, 302, 303, 307, 308)},
    "/inside": "it answered 302",
    "/missing": "it answered 404",
    "/part": "it answered 206",
    "/packed": "the response is compressed",
    "/says-10-GB": TOO_LARGE,
    "/says-too-many-digits": "",  # h11 or Python refuses, depending on their age
    "/10-GB": TOO_LARGE,
    "/cut-off": BROKEN,
    "/drops": SLOW,
    "/drops-of-a-head": SLOW,
    "/crumbs": "the response arrived in too many small pieces",
    "/interim-for-ever": "it sent too many interim",
    "/a-large-head": BROKEN,
    "/two-lengths": BROKEN,
    "/no-http": BROKEN,
    "/nothing": BROKEN,
    "/silent": SLOW,
}


@pytest.mark.parametrize("path", MISCHIEF)
def test_a_misbehaving_host_is_refused(served, hasty, remote, path, caplog):
    caplog.set_level(logging.INFO, references.__name__)
    http, _ = served
    num_asked = len(remote.asked)
    asked_of, _ = hasty if MISCHIEF[path] == SLOW else served
    message = refused(ask(asked_of, remote.entry + path), "reference_not_fetched")
    assert f"from 127.0.0.1:{remote.port}: {MISCHIEF[path]}" in caplog.text
    assert path not in caplog.text, "a path may be a secret"
    assert message == refused(ask(http, remote.entry + "/missing")), "the answers differ"
    assert len(remote.asked) == num_asked + 2, "it asked again, or somewhere else"
    wait_for(lambda: remote.num_open == 0)  # hung up on, though it would go on for ever
    assert ask(http, remote.entry + "/clip.wav").status_code == 200


def test_a_response_that_is_not_a_clip_is_rejected_like_an_upload(served, remote):
    http, _ = served
    message = refused(ask(http, remote.entry + "/text"), "invalid_audio")
    given = base64.b64encode(b"a secret of the other side").decode()
    assert message == refused(ask(http, given), "invalid_audio")


def test_a_clip_longer_than_allowed_is_refused_as_an_upload_is(tmp_path):
    pcm = bytes(2 * 16_000 * 61)
    with (
        RemoteClips(wav_header(16_000, len(pcm)) + pcm) as remote,
        services(tmp_path, remote.entry) as (http, _),
    ):
        answer = ask(http, remote.entry + "/clip.wav")
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "ref_audio")


def test_reference_at_a_closed_port_is_not_fetched(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        entry = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with services(tmp_path, entry) as (http, _):
        refused(ask(http, entry + "/clip.wav"), "reference_not_fetched")


def test_proxies_of_the_environment_are_not_used(served, remote, monkeypatch):
    http, _ = served
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0)
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert ask(http, remote.entry + "/clip.wav").status_code == 200
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize("path", ["/drops", "/drops-of-a-head"])
async def test_disconnect_ends_the_fetch(remote, path):
    fetcher = References([host(remote.entry)], pace=FetchPace(30.0, 1.0, 60.0))
    task = asyncio.create_task(fetcher.fetch(remote.entry + path))
    await until(lambda: remote.num_open)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not remote.num_open)
    fetcher.stop()


async def test_received_bytes_extend_the_fetch_timeout_up_to_a_limit(remote):
    # it comes with 80,000 bytes a second where a machine has time
    steady = FetchPace(grace_s=0.5, min_bytes_per_s=2000, max_s=20.0)
    assert steady.time_s(0) == 0.5
    fetcher = References([host(remote.entry)], pace=steady)
    begun_s = time.monotonic()
    assert await fetcher.fetch(remote.entry + "/steady") == CLIP
    assert time.monotonic() - begun_s > 0.7
    with pytest.raises(ReferenceNotFetched):
        await fetcher.fetch(remote.entry + "/drops")
    hasty = References([host(remote.entry)], pace=replace(steady, max_s=0.4))
    with pytest.raises(ReferenceNotFetched):
        await hasty.fetch(remote.entry + "/steady")


async def test_so_many_are_fetched_at_a_time(remote, monkeypatch):
    monkeypatch.setattr(references, "MAX_FETCHES", 2)
    fetcher = References([host(remote.entry)], pace=HASTY)
    asked = [fetcher.fetch(remote.entry + "/drops") for _ in range(3)]
    kinds = [type(reported) for reported in await asyncio.gather(*asked, return_exceptions=True)]
    assert kinds == [ReferenceNotFetched, ReferenceNotFetched, Overloaded]
    monkeypatch.setattr(fetcher, "_pace", PACE)
    assert await fetcher.fetch(remote.entry + "/clip.wav") == CLIP
    fetcher.stop()


# -- which address is connected to -----------------------------------------------------------------
ADDRESSES = (
    *("http://127.0.0.1:22", "http://169.254.169.254/latest", "http://[::1]", "http://0.0.0.0"),
    *("http://[::ffff:127.0.0.1]:{port}", "http://2130706433:{port}", "http://127.1:{port}"),
    *("http://0x7f.0.0.1:{port}", "http://0177.0.0.1:{port}", "http://localhost:{port}/clip.wav"),
    *("http://127.0.0.1:{port}\\@good.example/", "http://good.example\\@127.0.0.1:{port}/"),
    *("http://u:p@127.0.0.1:{port}/", "http://good.example@127.0.0.1:{port}/"),
    *("http://127.0.0.1:{port}#@good.example/", "http://127.0.0.1:{port}/clip.wav#a"),
    *("http://127.0.0.1:{port}/\r\nx: y", "http://127.0.0.1:{port}/ HTTP/1.1\r\nx: y"),
    *(
        "http://127.0.0.1:{port}/a b",
        "http://127.0.0.1:{port}/\tclip.wav",
        "http://127.0.0.1:{port}/é",
    ),
    *("http:127.0.0.1:{port}/", "http:/127.0.0.1:{port}/", "http:///127.0.0.1:{port}/"),
    *("http://127.0.0.1:0{port}/", "http://127.0.0.1:/", "http://127.0.0.1:99999/"),
    *("http://127.0.0.1.:{port}/", "http://127.0.0.1%2e:{port}/", "http://127.0.0.1:{port}/%zz"),
    *("https://127.0.0.1:{port}/", "http://127.0.0.1:{port}/" + "a" * 5000, "http://"),
    *(" http://127.0.0.1:{port}/", "\nhttp://127.0.0.1:{port}/", "http://127.0.0.1:{port}/\n"),
    *("file:///etc/passwd", "ftp://127.0.0.1:{port}/", "gopher://127.0.0.1:{port}/", "unix:/x"),
    *("http://[fe80::1%25lo]/", "http://\ud800.example/", "http://good.example:80/"),
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_other_spellings_and_places_are_not_connected_to(served, remote, address):
    http, _ = served
    before = remote.num_connections
    body = {"model": "tts", "input": "hi", "ref_text": "la"}
    body["ref_audio"] = address.replace("{port}", str(remote.port))
    answer = http.post(SPEECH, content=json.dumps(body))
    assert refused(answer) is not None
    assert remote.num_connections == before


def test_without_a_list_no_address_is_asked(tmp_path, remote):
    before = remote.num_connections
    with services(tmp_path) as (http, _):
        assert "--reference-host" in refused(ask(http, remote.entry + "/clip.wav"))
    assert remote.num_connections == before


@pytest.fixture
def connected(monkeypatch):
    """Addresses that were connected to; all of them lead to ports of this machine, by name."""
    real, seen, ports = asyncio.open_connection, [], {}

    async def connect_here(address, port, **options):
        seen.append((address, port))
        if address == NOT_FOUND:
            raise ConnectionRefusedError
        return await real("127.0.0.1", ports.get(address, port), **options)

    monkeypatch.setattr(asyncio, "open_connection", connect_here)
    connect_here.seen, connect_here.ports = seen, ports
    return connect_here


class Resolver:
    """Sends one item after the other, and repeats the last one."""

    def __init__(self, *said):
        self.said, self.asked = list(said), []

    async def __call__(self, name):
        self.asked.append(name)
        return self.said.pop(0) if len(self.said) > 1 else self.said[0]


async def test_a_name_is_resolved_once_and_exactly_that_is_connected_to(remote, connected):
    rebinding = Resolver([FOUND], ["127.0.0.1"])
    connected.ports[FOUND] = remote.port
    fetcher = References([host("http://clips.example")], pace=PACE, resolve=rebinding)
    assert await fetcher.fetch("http://clips.example/clip.wav") == CLIP
    assert rebinding.asked == ["clips.example"]
    assert connected.seen == [(FOUND, 80)]
    assert b"host: clips.example\r\n" in remote.asked[-1].lower()
    # Now it says the other thing, and that is not connected to.
    with pytest.raises(ReferenceNotFetched):
        await fetcher.fetch("http://clips.example/clip.wav")
    assert connected.seen == [(FOUND, 80)]


INSIDE = (
    *("127.0.0.1", "127.8.8.8", "10.0.0.5", "172.16.3.4", "192.168.1.1", "169.254.169.254"),
    *("0.0.0.0", "0.1.2.3", "100.64.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
    *("255.255.255.255", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.7", "::", "::1"),
    *("fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1"),
    *("::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:808:808::", "2001::1"),
    *("2001:db8::1", "3fff::1", "100::1"),
)


@pytest.mark.parametrize("address", INSIDE)
@pytest.mark.parametrize("others", [[], [FOUND]])
async def test_names_of_what_is_inside_are_not_connected_to(connected, caplog, address, others):
    caplog.set_level(logging.INFO)
    fetcher = References([host("clips.example")], resolve=Resolver([*others, address]))
    with pytest.raises(ReferenceNotFetched) as reported:
        await fetcher.fetch("https://clips.example/a-secret-path")
    assert connected.seen == []
    assert address not in str(reported.value)
    assert reported.value.__cause__ is None
    assert "not public" in caplog.text  # in the operator's log
    assert "a-secret-path" not in caplog.text


def test_public_addresses_are_public():
    for address in (FOUND, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert is_public(address), address


async def test_the_next_address_of_a_name_is_tried_and_no_more_than_three(remote, connected):
    two = ["8.8.4.4", FOUND]
    connected.ports |= {"8.8.4.4": 9, FOUND: remote.port}  # nobody listens at port 9
    fetcher = References([host("http://clips.example")], pace=PACE, resolve=Resolver(two))
    assert await fetcher.fetch("http://clips.example/clip.wav") == CLIP
    assert [address for address, _ in connected.seen] == two
    connected.seen.clear()
    four = [f"8.8.8.{i}" for i in range(4)]
    connected.ports |= dict.fromkeys(four, 9)
    fetcher = References([host("http://clips.example")], pace=PACE, resolve=Resolver(four))
    with pytest.raises(ReferenceNotFetched):
        await fetcher.fetch("http://clips.example/clip.wav")
    assert [address for address, _ in connected.seen] == four[:3]


async def test_a_name_server_that_does_not_answer_takes_its_time_and_no_more():
    async def never(name):
        await asyncio.sleep(60)

    fetcher = References([host("clips.example")], pace=HASTY, resolve=never)
    with pytest.raises(ReferenceNotFetched):
        await asyncio.wait_for(fetcher.fetch("https://clips.example/"), 50)


async def test_the_system_resolves_names_in_threads_of_its_own(monkeypatch, connected, remote):
    asked = []

    def look_up(name, *_, **__):
        asked.append((name, threading.current_thread().name))
        inet = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (FOUND, 0))
        return [inet, inet]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    connected.ports[FOUND] = remote.port
    fetcher = References([host("http://clips.example")], pace=PACE)
    assert await fetcher.fetch("http://clips.example/clip.wav") == CLIP
    assert [name for name, _ in asked] == ["clips.example"]
    assert asked[0][1].startswith("resolve")
    assert connected.seen == [(FOUND, 80)]
    fetcher.stop()


async def test_an_unknown_host_gets_reference_not_fetched(monkeypatch):
    def look_up(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "a secret of the resolver")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    fetcher = References([host("clips.example")], pace=PACE)
    with pytest.raises(ReferenceNotFetched, match="a clip of at most"):
        await fetcher.fetch("https://clips.example/")
    fetcher.stop()


# -- TLS -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "trusts", "fetched"),
    [
        ("clips.example", True, True),
        ("other.example", True, False),  # the certificate is of another name
        ("clips.example", False, False),  # nobody vouches for it
    ],
)
async def test_a_server_proves_its_name(tls_remote, connected, name, trusts, fetched):
    connected.ports[FOUND], num_asked = tls_remote.port, len(tls_remote.asked)
    tls = ssl.create_default_context(cafile=str(CERTIFICATE)) if trusts else None
    fetcher = References([host(name)], pace=PACE, resolve=Resolver([FOUND]), tls=tls)
    if fetched:
        assert await fetcher.fetch(f"https://{name}/clip.wav") == CLIP
        assert connected.seen == [(FOUND, 443)]
    else:
        with pytest.raises(ReferenceNotFetched):
            await fetcher.fetch(f"https://{name}/clip.wav")
        assert len(tls_remote.asked) == num_asked
    await until(lambda: not tls_remote.num_open)


# -- the list --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("entry", "expected", "authority"),
    [
        ("clips.example", ("https", "clips.example", 443), "clips.example"),
        ("Clips.EXAMPLE:8443", ("https", "clips.example", 8443), "clips.example:8443"),
        ("http://10.0.0.5:9000", ("http", "10.0.0.5", 9000), "10.0.0.5:9000"),
        ("http://minio", ("http", "minio", 80), "minio"),
        ("https://[2001:DB8::1]", ("https", "2001:db8::1", 443), "[2001:db8::1]"),
        ("bücher.example", ("https", "xn--bcher-kva.example", 443), "xn--bcher-kva.example"),
    ],
)
def test_entries_of_the_list(entry, expected, authority):
    assert host(entry) == ReferenceHost(*expected)
    assert host(entry).authority == authority
    assert host(f"{expected[0]}://{authority}") == host(entry)


@pytest.mark.parametrize(
    "entry",
    [
        *("", "*", "https://", "a.example/path", "a.example/", "u@a.example", "ftp://a.example"),
        *("a.example:0", "a.example:99999", "a.example:", "a..example", "a b.example", "127.1"),
        *("2130706433", "0x7f.1", "[::1", "::1", "[fe80::1%lo]", "-a.example", "a.example."),
        *("localhost", "http://a.localhost:80", "a\\b", "a" * 64 + ".example", "a." * 130 + "b"),
    ],
)
def test_invalid_entries_are_rejected(entry):
    with pytest.raises(InvalidRequest, match="--reference-host"):
        host(entry)


@pytest.mark.parametrize(
    "address",
    [
        *("https://clips.example/a", "HTTPS://CLIPS.example/a", "https://clips.example:443/a"),
        *("https://ｃｌｉｐｓ.example/a", "https://clips。example/a"),
    ],
)
def test_spellings_of_a_listed_host(address):
    url = parse_url(address)
    assert (url.host, url.target) == (host("clips.example"), "/a")
    assert is_address(address)


def test_digits_of_other_scripts_are_no_way_around():
    assert parse_url("http://①②⑦.⓪.⓪.①/").host == host("http://127.0.0.1")


def test_clips_are_no_addresses():
    for given in (base64.b64encode(CLIP).decode(), "data:audio/wav;base64,AAAA", "", "//a/b"):
        assert not is_address(given)


def test_the_list_of_the_environment():
    listed = read_settings({"IZWI_REFERENCE_HOSTS": "a.example, http://10.0.0.5:9000,"})
    assert listed.reference_hosts == (host("a.example"), host("http://10.0.0.5:9000"))
    assert read_settings({}).reference_hosts == ()
    assert read_settings({"IZWI_MAX_REFERENCE_FETCH_S": "3"}).reference_pace.max_s == 3.0
    with pytest.raises(InvalidRequest, match="IZWI_REFERENCE_HOSTS"):
        read_settings({"IZWI_REFERENCE_HOSTS": "a.example/path"})


def test_a_bad_option_fails_before_models_load(tmp_path, monkeypatch):
    monkeypatch.setenv("IZWI_HOME", str(tmp_path))
    reported = CliRunner().invoke(
        command_line, ["serve", "--model", "/nowhere", "--reference-host", "a.example/path"]
    )
    assert reported.exit_code != 0
    assert "clips.example:8443" in " ".join(reported.output.split())
