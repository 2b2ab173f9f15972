"""HTTPS with a self-made certificate: requests, WebSockets, unusable files."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing

import httpx
import pytest
from websockets.sync.client import connect

from izwi.errors import InvalidRequest
from izwi_api.http.tls_files import read_tls_files
from izwi_api.settings import TlsFiles
from tests.api.served import served

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
SPEECH = "/v1/audio/speech"
ASK = {"model": "izwi-tiny-tts", "input": "Hello.", "voice": "amber", "response_format": "pcm"}


def make_certificate(folder, name, *options):
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", "/CN=here"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(cert), *(options or ("-nodes",))]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"), "server")


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.slow), ("--in-process",)])
def test_it_serves_https_and_nothing_else(tmp_path, files, options):
    cert, key = files
    trusting = ssl.create_default_context(cafile=str(cert))
    options = ("--tls-cert", str(cert), "--tls-key", str(key), *options)
    with served(tmp_path, *options, verify=trusting, IZWI_DECODE_WORKERS="1") as server:
        assert server.url.startswith("https://")
        answer = httpx.post(server.url + SPEECH, json=ASK, verify=trusting, timeout=60)
        assert answer.status_code == 200
        assert answer.content
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(server.url + "/livez")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(server.url.replace("https", "http") + "/livez")
        url = server.url.replace("https", "wss") + SPEECH + "/stream"
        with connect(url, ssl=trusting, proxy=None) as session:
            session.send("{}")
            assert "error" in session.recv(timeout=60)
        # one that does not finish its handshake holds up nobody
        with closing(socket.create_connection(("127.0.0.1", server.port))):
            begun_s = time.monotonic()
            assert httpx.get(server.url + "/livez", verify=trusting).status_code == 200
            assert time.monotonic() - begun_s < 10
        assert f"running on {server.url}" in server.log.read_text()


def test_a_key_may_be_in_the_file_of_the_certificate(tmp_path, files):
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in files))
    assert read_tls_files(both, None) == TlsFiles(both)
    assert read_tls_files(*files) == TlsFiles(*files)
    assert read_tls_files(None, None) is None


def test_unusable_tls_files_are_named(tmp_path, files):
    cert, key = files
    other = make_certificate(tmp_path, "other")[1]
    locked = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for pair, message in (
        ((None, key), "--tls-key needs --tls-cert"),
        ((tmp_path / "none.pem", key), "--tls-cert: there is no file"),
        ((cert, tmp_path / "none.pem"), "--tls-key: there is no file"),
        ((cert, None), "cannot be used for TLS"),
        ((cert, other), "KEY_VALUES_MISMATCH"),
        ((text, key), "text.pem"),
        (locked, "without a password"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            read_tls_files(*pair)


def test_serve_says_in_one_line_what_is_wrong(tmp_path):
    start = "from izwi_api.cli.run import main; main()"
    command = [sys.executable, "-c", start, "serve", "--tls-cert", str(tmp_path / "none.pem")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no file" in done.stderr
    assert "Traceback" not in done.stderr
