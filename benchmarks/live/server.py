"""Serve live voice for `benchmarks.live.answers`: embedded models, or random published sizes.

The engine and each API server run in their own processes, like with `izwi serve`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.chat.speed import write_folder
from benchmarks.live.models import CHAT, SIZES
from benchmarks.random_checkpoint import folder_of
from izwi.checkpoints.registry import named
from izwi.config import EngineConfig
from izwi_api.environment import read_settings
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.listen_sockets import open_listen_sockets, url_of
from izwi_api.serve.options import ServeOptions
from izwi_api.serve.supervisor import Supervisor

_PROGRAMS = ("benchmarks.serving.http_engine", "benchmarks.live.api_server")


def main() -> None:
    """Serve until the process is told to stop."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="embedded")
    parser.add_argument("--chat", help="chat model, with --size embedded")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--api-servers", type=int, default=1, help="API-server processes")
    options = parser.parse_args()
    # its processes find this package where this one found it
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    config = EngineConfig(max_running=options.streams)
    if options.device == "cpu":
        config = EngineConfig(max_running=options.streams, kv_bytes=1 << 28)
    with tempfile.TemporaryDirectory() as home:
        settings = read_settings({**os.environ, "IZWI_HOME": home})
        serve_options = ServeOptions(
            (),
            RuntimeOptions(options.device),
            config,
            settings,
            drain_s=0.0,
            num_api_servers=options.api_servers,
        )
        sockets = open_listen_sockets("127.0.0.1", options.port)
        models = folders(options.size, options.chat, Path(home))
        Supervisor(serve_options, models, sockets, url_of("127.0.0.1", sockets), _PROGRAMS).run()


def folders(size: str, chat: str | None, home: Path) -> dict[str, Path]:
    """Return the folders of a size's models by name; published sizes are made, without weights."""
    speech, listening, writing = SIZES[size]
    found = {name: folder_of(name, home) for name in (speech, listening)}
    if size == "embedded":
        return found | {CHAT: named(chat or writing)[1]}
    (home / CHAT).mkdir()
    return found | {CHAT: write_folder(writing, home / CHAT)}


if __name__ == "__main__":
    main()
