"""One file of a repository is fetched, and a download that was cut off goes on where it ended."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from izwi.checkpoints.hub import DownloadProgress, fetch_file
from izwi.errors import EngineStopped, InvalidRequest

COMMIT = "a" * 40
CHUNK = 1 << 18
CONTENT = bytes(range(256)) * (20 * CHUNK // 256)
NAMES = ("README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "deep/m-BF16.gguf")


class Hub(BaseHTTPRequestHandler):
    """The parts of the hub's API that a download uses."""

    breaks_after = 0  # bytes after which a connection breaks; 0: never
    first_bytes: ClassVar[list[int]] = []  # where each download of the file began

    def do_GET(self) -> None:
        if self.path.startswith("/org/m/resolve/"):
            self._send_file()
        elif "/tree/" in self.path:
            self._send_json(
                [{"type": "file", "path": n, "size": len(CONTENT), "oid": "b" * 40} for n in NAMES]
            )
        else:
            files = [{"rfilename": name} for name in NAMES]
            self._send_json({"id": "org/m", "sha": COMMIT, "siblings": files})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self) -> None:
        found = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start, last = int(found[1]) if found else 0, len(CONTENT) - 1
        self.send_response(206 if found else 200)
        etag = hashlib.sha256(CONTENT).hexdigest()
        for name, value in {
            "ETag": f'"{etag}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(CONTENT)),
            "Content-Length": str(len(CONTENT) - start),
            **({"Content-Range": f"bytes {start}-{last}/{len(CONTENT)}"} if found else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.first_bytes.append(start)
            stop = start + self.breaks_after if self.breaks_after else None
            self.wfile.write(CONTENT[start:stop])
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Hub.first_bytes.clear()
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    yield Hub.first_bytes
    server.shutdown()
    server.server_close()


def test_a_download_that_was_stopped_goes_on(hub: list[int], tmp_path: Path) -> None:
    seen: list[DownloadProgress] = []

    def stop(progress: DownloadProgress) -> None:
        if (progress.done_bytes or 0) >= 9 * CHUNK:
            raise EngineStopped("stopped")

    with pytest.raises(EngineStopped):
        fetch_file("org/m", "*Q4_K_M.gguf", tmp_path, report=stop)
    assert hub == [0]
    path = fetch_file("org/m", "*Q4_K_M.gguf", tmp_path, report=seen.append)
    assert path.name == "m-Q4_K_M.gguf"
    assert path.read_bytes() == CONTENT
    assert len(hub) == 2
    assert hub[1] == 9 * CHUNK
    assert seen[-1].done_bytes == seen[-1].total_bytes == len(CONTENT)
    assert fetch_file("org/m", "m-Q4*", tmp_path) == path
    assert fetch_file("org/m", "m-Q4*", tmp_path, offline=True) == path
    assert len(hub) == 2


def test_a_connection_that_breaks_is_made_again(
    hub: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "breaks_after", 5 * CHUNK)
    path = fetch_file("org/m", "*Q8*", tmp_path)
    assert path.read_bytes() == CONTENT
    assert hub == [0, 5 * CHUNK, 10 * CHUNK, 15 * CHUNK]


def test_a_pattern_must_match_one_file(hub: list[int], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"matches 3 files of org/m: deep/m-BF16\.gguf, m-Q4"):
        fetch_file("org/m", "*.gguf", tmp_path)
    with pytest.raises(InvalidRequest, match=r"'\*Q2\*' matches no file of org/m; it has deep/m-B"):
        fetch_file("org/m", "*Q2*", tmp_path)
    assert fetch_file("org/m", "deep/*", tmp_path).read_bytes() == CONTENT
    with pytest.raises(InvalidRequest, match=r"matches no file of org/other; it has no weights"):
        fetch_file("org/other", "*", tmp_path, offline=True)
